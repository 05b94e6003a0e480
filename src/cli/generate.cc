// trireme generate RUN.toml --prompt TEXT: samples text from a checkpoint or a Hugging Face folder.
#include "generate/generate.h"

#include "cli/source.h"

namespace trireme::cli {

void add_generate(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("generate",
                                      "samples text from the newest checkpoint of a run, or from model.from\n"
                                      "example: trireme generate runs/demo/run.toml --prompt 'def main('");
  auto request = std::make_shared<RunRequest>();
  auto prompt = std::make_shared<std::string>();
  auto o = std::make_shared<GenerateOptions>();
  request->add_to(*verb, false);
  verb->add_option("--prompt", *prompt, "text to go on from; default: the start of a document");
  verb->add_option("--tokens", o->tokens, "new tokens, at most")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  verb->add_option("--temperature", o->sample.temperature, "0 = the most likely token")
      ->capture_default_str();
  verb->add_option("--top-k", o->sample.top_k, "keep the k most likely tokens; 0 = all")
      ->capture_default_str();
  verb->add_option("--top-p", o->sample.top_p, "keep the likeliest tokens that reach p")
      ->capture_default_str();
  verb->add_option("--seed", o->sample.seed, "of the draws")->capture_default_str();
  verb->callback([request, prompt, o] {
    RunSpec run = request->load();
    Tokenizer tokenizer = tokenizer_of(run);
    if (tokenizer.vocab_size() > run.model.vocab)
      bad_request("{} has {} tokens, the model {}: they do not belong together", tokenizer_path(run).string(),
                  tokenizer.vocab_size(), run.model.vocab);
    std::vector<int32_t> ids = tokenizer.encode(*prompt);
    if (auto end = tokenizer.find_added(kEndOfText)) {
      o->end_of_text = *end;
      if (ids.empty()) ids = {*end};
    }
    if (ids.empty()) bad_request("--prompt is empty and the tokenizer has no {} to start from", kEndOfText);
    LoadedModel m = load_model(run);
    o->context = run.data.seq_len;
    fmt::print("{}", *prompt);
    generate(*m.runner, ids, *o, [&](int32_t id) {
      // Ids beyond the tokenizer's are padding rows of the vocabulary: they stand for nothing.
      if (id < tokenizer.vocab_size()) fmt::print("{}", tokenizer.decode(std::span(&id, 1)));
      std::fflush(stdout);
    });
    fmt::print("\n");
  });
}

}  // namespace trireme::cli
