#include <fmt/format.h>

#include <set>

#include "cli/distill.h"
#include "cli/kept_options.h"
#include "cli/prompts.h"
#include "cli/source.h"
#include "sandbox/interpreter.h"
#include "sandbox/sandbox.h"
#include "spec/hf_config.h"
#include "spec/toml.h"
#include "tasks/code_tasks.h"
#include "train/adapter_files.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

RunSpec base_run(const DistillRequest& r) {
  return parse_run(base_file_text(r), base_file(r).string());
}

void check_sampling(const std::string& option, double temperature, int64_t top_k, double top_p) {
  if (!(temperature >= 0 && temperature <= 1e3))
    bad_request("--{}temperature{} = {:g}: expected a number from 0 to 1000", option,
                option.empty() ? "" : "s", temperature);
  if (top_k < 0) bad_request("--{}top-k = {}: expected an integer >= 0; 0 = all", option, top_k);
  if (!(top_p > 0 && top_p <= 1))
    bad_request("--{}top-p = {:g}: expected a number above 0, at most 1", option, top_p);
}

void check_options(const DistillRequest& r) {
  check_sampling("", r.temperature, r.top_k, r.top_p);
  std::set<std::string> seen;  // as files are named
  for (double t : r.eval_temperatures) {
    check_sampling("eval-", t, r.eval_top_k, r.eval_top_p);
    if (!seen.insert(fmt::format("{:g}", t)).second)
      bad_request("--eval-temperatures = {}: {:g} is given twice", fmt::join(r.eval_temperatures, ","), t);
  }
  const int64_t most = model_from_hf(fs::path(r.model) / "config.json").max_positions;
  if (most > 0 && r.seq_len > most)
    bad_request("--seq-len = {}: expected 2 to {}, the positions of the model", r.seq_len, most);
}

// The run file that `tune` will write, with the keys of --set.
void check_fine_tuning(const DistillRequest& r) {
  const TuneRequest t = tune_request(r, "kept.jsonl", fs::path(r.out) / "seed-1" / "tuned", 1);
  refuse(parse_run(tune_file_text(t, 1), "fine-tuning", t.sets));
}

// The prompts can be made and read, and the program can judge.
void check_model(const DistillRequest& r) {
  const RunSpec run = base_run(r);
  const Tokenizer tokenizer = tokenizer_of(run);
  refuse_foreign_tokenizer(run, tokenizer);
  const GenerateOptions o{
      .sample = {}, .tokens = r.tokens, .context = context_of(run, 0), .parallel = r.parallel};
  generation_shape(encode_prompts(tokenizer, asked_of(r, run).shown), o);
  const Sandbox sandbox(find_interpreter());
}

void check_folder(const DistillRequest& r) {
  std::error_code none;
  if (!fs::exists(r.out, none)) return;
  if (!fs::is_directory(r.out, none)) bad_request("--out = {}: not a folder", r.out);
  if (fs::exists(fs::path(r.out) / "distill.json", none)) return;
  for (const auto& entry : fs::directory_iterator(r.out))
    if (entry.path().filename() != "lock")
      bad_request("--out = {}: holds other files, such as {}; give an empty folder or one of distill", r.out,
                  entry.path().filename().string());
}

}  // namespace

fs::path base_file(const DistillRequest& r) {
  return fs::path(r.out) / "base.toml";
}

std::string base_file_text(const DistillRequest& r) {
  return fmt::format(
      "# The model before fine-tuning.\n[model]\nfrom = {}\n[data]\ntokenizer = {}\nseq_len = {}\n",
      toml_string(r.model), toml_string((fs::path(r.model) / "tokenizer.json").string()),
      context_of_model(r));
}

int64_t context_of_model(const DistillRequest& r) {
  constexpr int64_t kMost = 4096;
  const int64_t most = model_from_hf(fs::path(r.model) / "config.json").max_positions;
  return most > 0 ? std::min(most, kMost) : kMost;
}

TuneRequest tune_request(const DistillRequest& r, const fs::path& data, const fs::path& run, uint64_t seed) {
  TuneRequest t;
  t.model = r.model;
  t.out = run.string();
  t.epochs = r.epochs;
  t.lr = r.lr;
  t.chat.files = {data.string()};
  t.batch = r.batch;
  t.seq_len = r.seq_len;
  t.sets = r.sets;
  t.sets.insert(t.sets.begin(), fmt::format("train.seed={}", seed));
  return t;
}

Asked asked_of(const DistillRequest& r, const RunSpec& run) {
  std::vector<std::string> texts;
  const std::optional<ChatTemplate> chat = r.plain ? std::nullopt : chat_template_of(run);
  if (!r.plain && !chat) bad_request("{}: no chat template in its folder; --plain asks without one", r.model);
  if (!r.prompts.empty())
    texts = read_prompts(r.prompts);
  else
    for (const CodeTask& t : read_code_tasks(r.tasks)) texts.push_back(chat ? chat_request(t) : t.prompt);
  Asked a;
  std::set<std::string> seen;  // a prompt is asked once
  for (const std::string& text : texts) {
    if (!seen.insert(text).second) continue;
    if (!chat) {
      a.shown.push_back(text);
      a.messages.push_back(nullptr);
      continue;
    }
    ChatInput input;
    input.messages.push_back({{"role", "user"}, {"content", text}});
    input.add_generation_prompt = true;
    a.shown.push_back(chat->render(input).text);
    a.messages.push_back(input.messages);
  }
  return a;
}

ordered_json options_of(const DistillRequest& r) {
  return {{"model", r.model},
          {"weights", base_identity(base_run(r))},
          {"tasks", r.tasks},
          {"tasks_xxh3", digest_of(r.tasks)},
          {"prompts", r.prompts},
          {"prompts_xxh3", r.prompts.empty() ? "" : digest_of(r.prompts)},
          {"temperature", r.temperature},
          {"top_k", r.top_k},
          {"top_p", r.top_p},
          {"tokens", r.tokens},
          {"epochs", r.epochs},
          {"lr", r.lr},
          {"batch", r.batch},
          {"seq_len", r.seq_len},
          {"set", r.sets},
          {"eval_top_k", r.eval_top_k},
          {"eval_top_p", r.eval_top_p},
          {"eval_tokens", r.eval_tokens},
          {"per_task", r.per_task},
          {"plain", r.plain},
          {"time_limit", r.time_limit}};
}

void refuse_bad(const DistillRequest& r) {
  std::error_code none;
  if (!fs::is_regular_file(fs::path(r.model) / "config.json", none))
    bad_request("{}: no config.json: MODEL is a Hugging Face folder; `trireme convert` makes one from a run",
                r.model);
  check_options(r);
  read_code_tasks(r.tasks);
  check_fine_tuning(r);
  check_model(r);
  check_folder(r);
}

void keep_options(const DistillRequest& r, const ordered_json& now) {
  const fs::path file = fs::path(r.out) / "distill.json";
  std::error_code none;
  if (!fs::exists(file, none)) {
    make_folders(r.out);
    return write_text_atomic(file, now.dump(2) + "\n");
  }
  refuse_other_options(r.out, file, now);
}

}  // namespace trireme::cli
