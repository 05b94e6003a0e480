#include "cli/run_samples.h"

#include "base/json.h"
#include "cli/prompts.h"
#include "cli/source.h"
#include "runtime/booking.h"
#include "trace/metrics.h"

namespace trireme::cli {
namespace {

constexpr int64_t kMostShown = 300;  // bytes of a text in the line for the user

RunSpec on_the_cpu(RunSpec run) {
  run.train.device = "cpu";
  return run;
}

}  // namespace

RunSamples::RunSamples(const RunSpec& run) : run_(on_the_cpu(run)), tokenizer_(tokenizer_of(run)) {
  refuse_foreign_tokenizer(run, tokenizer_);
  encode_prompts(tokenizer_, {run.train.sample_prompt});  // refused now, not at the first text
}

std::string RunSamples::write(int64_t step, const fs::path& checkpoint) const try {
  GenerateOptions o;
  o.sample.seed = uint64_t(run_.train.seed);
  o.tokens = run_.train.sample_tokens;
  o.context = context_of(run_, 0);
  o.vocab = tokenizer_.vocab_size();
  o.end_of_text = tokenizer_.find_end_of_text().value_or(-1);
  const Prompts prompts = encode_prompts(tokenizer_, {run_.train.sample_prompt});
  const int64_t arena = book_generation(run_, threads_of(run_), generation_shape(prompts, o));
  const LoadedModel m = load_model(run_, arena, checkpoint);
  Generated text;
  generate(*m.runner, prompts, o,
           {.token = {}, .done = [&](size_t, const Generated& g) { text = g; }, .leave = {}});
  const std::string decoded = tokenizer_.decode(text.tokens);
  nlohmann::ordered_json line = {{"step", step}};
  line.update(nlohmann::ordered_json::parse(json_line(0, run_.train.sample_prompt, decoded, text)));
  line.erase("index");
  const fs::path file = fs::path(run_.train.dir) / "samples.jsonl";
  keep_lines_up_to(file, step - 1);
  append_line(file, line.dump());
  std::string shown = line["text"];
  for (char& c : shown)
    if (c == '\n' || (c >= 0 && c < ' ')) c = ' ';
  if (int64_t(shown.size()) > kMostShown) shown = shown.substr(0, size_t(kMostShown)) + "...";
  return fmt::format("step {}: {}|{}", step, run_.train.sample_prompt, shown);
} catch (const Error& e) {
  return fmt::format("step {}: no text was generated: {}", step, e.what());
}

}  // namespace trireme::cli
