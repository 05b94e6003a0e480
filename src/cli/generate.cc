// trireme generate RUN.toml --prompt TEXT: samples text from a checkpoint or a Hugging Face folder.
#include "generate/generate.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/interrupt.h"
#include "base/say.h"
#include "cli/live_text.h"
#include "cli/prompts.h"
#include "cli/sampling.h"
#include "cli/use_model.h"
#include "cli/used_keys.h"
#include "generate/text_stream.h"

namespace trireme::cli {
namespace {

struct GenerateRequest {
  RunRequest run;
  std::string prompt, prompts, out, layout;
  std::vector<std::string> stops;
  int64_t samples = 1;
  GenerateOptions o{.context = 0, .parallel = 8};
};

// Takes texts as they grow and shows them in the order of their prompts: one prompt's as it comes, of many
// each when it is whole.
class Output {
 public:
  Output(const GenerateRequest& r, const Tokenizer& tokenizer, const std::vector<std::string>& prompts)
      : request_(r), tokenizer_(tokenizer), prompts_(prompts), done_(prompts.size()) {
    for (size_t i = 0; i < prompts.size(); i++) streams_.emplace_back(r.stops);
    if (!r.out.empty()) write_text_atomic(r.out, "");  // refused now rather than after the work
    if (prompts.size() > 1 || lines()) bar_.emplace("generate", int64_t(prompts.size()));
    if (live()) out_.show(prompts[0]);
  }

  GenerateHooks hooks() {
    GenerateHooks h;
    h.token = [this](size_t i, int32_t id) {
      std::string_view part = streams_[i].push(tokenizer_.token(id));
      if (live()) out_.show(part);
      return streams_[i].stopped();
    };
    h.done = [this](size_t i, const Generated& g) { done(i, g); };
    h.leave = [] { return interrupt_requested(); };
    return h;
  }

  size_t complete() const { return shown_; }
  void finish() {
    if (bar_) bar_->finish();
  }

 private:
  bool lines() const { return request_.run.json || !request_.out.empty(); }
  bool live() const { return prompts_.size() == 1 && !lines(); }

  void done(size_t i, const Generated& g) {
    std::string_view rest = streams_[i].finish();
    if (live()) out_.show(std::string(rest) + "\n", true);
    if (g.finish == Finish::interrupted) return;
    done_[i] = g;
    for (; shown_ < done_.size() && done_[shown_]; shown_++) {
      if (!live()) print(shown_);
      done_[shown_]->tokens.clear();
    }
    if (bar_) bar_->update(int64_t(shown_));
  }

  void print(size_t i) {
    const std::string &prompt = prompts_[i], &text = streams_[i].text();
    if (!lines()) return out_.show(fmt::format("--- {} of {}\n{}{}\n", i + 1, prompts_.size(), prompt, text));
    std::string line = json_line(i, prompt, text, *done_[i]);
    if (request_.out.empty())
      out_.show(line + "\n");
    else
      append_line(request_.out, line);
  }

  LiveText out_;
  const GenerateRequest& request_;
  const Tokenizer& tokenizer_;
  const std::vector<std::string>& prompts_;
  std::vector<TextStream> streams_;
  std::vector<std::optional<Generated>> done_;
  size_t shown_ = 0;
  std::optional<Progress> bar_;
};

std::string speed(int64_t tokens, double seconds) {
  return fmt::format("{} tokens in {} ({} tokens/s)", tokens, human_seconds(seconds),
                     human_count(double(tokens) / std::max(seconds, 1e-9)));
}

// The most likely token is taken, nothing is drawn.
void note_unused_draws(const CLI::App& verb) {
  for (const char* name : {"--top-k", "--top-p", "--seed"})
    if (verb.count(name) > 0)
      say("note: {}: not used with --temperature 0, which takes the most likely token\n", name);
}

// Each text n times, one after the other: the copies share their prompt's cache.
std::vector<std::string> repeated(const std::vector<std::string>& texts, int64_t n) {
  std::vector<std::string> all;
  for (const std::string& t : texts) all.insert(all.end(), size_t(n), t);
  return all;
}

std::string memory_text(const LoadedModel& m, const ModelMemory& memory, const GenerationShape& shape) {
  const std::string weights = human_bytes(m.runner->flat().weights.bytes());
  const std::string cache = human_bytes(m.runner->decoder().cache_sizes(shape.slots, shape.capacity).bytes());
  if (memory.ranks == 1)
    return fmt::format("{} of memory: {} weights, {} cache for {} x {} tokens", human_bytes(memory.all),
                       weights, cache, shape.slots, shape.capacity);
  return fmt::format("{} ranks, at most {} of memory each: on rank 0 {} weights, {} cache for {} x {} tokens",
                     memory.ranks, human_bytes(memory.most), weights, cache, shape.slots, shape.capacity);
}

// With a divided model in f32 and temperature 0: the places where rounding may choose the token. Up to the
// first of a text, the tokens are those of one rank.
class NearTies {
 public:
  NearTies(const StageRunner& runner, const SampleOptions& o)
      : watched_(runner.passes().divided() && o.temperature < kGreedy &&
                 runner.run().precision.compute == "f32") {}
  bool watched() const { return watched_; }
  void operator()(size_t prompt, size_t token, float gap) {
    if (!first_.contains(prompt)) first_[prompt] = {token, gap};
  }
  void report() const {
    constexpr size_t kMost = 10;
    size_t n = 0;
    for (const auto& [prompt, place] : first_) {
      if (n++ == kMost) break;
      say("note: text {}, token {}: the two most likely tokens are {:.1e} apart, within rounding; another "
          "layout "
          "may take the other one from here on\n",
          prompt + 1, place.first + 1, place.second);
    }
    if (first_.size() > kMost) say("note: likewise in {} more texts\n", first_.size() - kMost);
  }

 private:
  bool watched_;
  std::map<size_t, std::pair<size_t, float>> first_;  // by prompt: token, difference of the logits
};

void generate_verb(GenerateRequest& r) {
  check_set_keys("generate", r.run);
  const UsedRun used = load_used(r.run);
  const RunSpec& run = used.run;
  note_fp8("generate", run);
  Tokenizer tokenizer = tokenizer_of(run);
  refuse_foreign_tokenizer(run, tokenizer);
  r.o.context = context_of(run, r.o.context);
  if (r.o.context < 2) bad_request("the model sees one token at once (data.seq_len = 1): a text needs two");
  r.o.vocab = tokenizer.vocab_size();
  r.o.end_of_text = tokenizer.find_end_of_text().value_or(-1);
  Sampler good_options(r.o.sample);
  TextStream good_stops(r.stops);
  std::vector<std::string> texts = r.prompts.empty() ? std::vector{r.prompt} : read_prompts(r.prompts);
  texts = repeated(texts, r.samples);
  Prompts prompts = encode_prompts(tokenizer, texts);
  if (const auto longest =
          int64_t(std::max_element(prompts.begin(), prompts.end(),
                                   [](const auto& a, const auto& b) { return a.size() < b.size(); })
                      ->size());
      longest > r.o.context)
    say("note: {} of {} tokens, and the model sees {} at once: of what is longer it reads the end\n",
        prompts.size() == 1 ? "the prompt is" : "the longest prompt is", longest, r.o.context);
  const GenerationShape shape = generation_shape(prompts, r.o);
  const auto book = [&](const RunSpec& of, int threads, int pp_rank) {
    return book_generation(of, threads, shape, pp_rank);
  };
  install_interrupt_handlers();
  GenerateStats s;
  size_t complete = 0;
  use_model(used, r.layout, book, [&](LoadedModel& m, const ModelMemory& memory) {
    say("{}\n{}\n", m.where, memory_text(m, memory, shape));
    Output output(r, tokenizer, texts);
    NearTies ties(*m.runner, r.o.sample);
    GenerateHooks hooks = output.hooks();
    if (ties.watched()) hooks.near_tie = std::ref(ties);
    s = generate(*m.runner, prompts, r.o, hooks);
    output.finish();
    complete = output.complete();
    ties.report();
  });
  // Of the new tokens those that came with reading took no time of their own.
  const std::string decoding = s.decoded == 0
                                   ? ""
                                   : fmt::format(" in {} ({} tokens/s)", human_seconds(s.decode_s),
                                                 human_count(double(s.decoded) / std::max(s.decode_s, 1e-9)));
  say("read {}; new {}{}{}\n", speed(s.read_tokens, s.read_s),
      fmt::format("{} token{}", s.new_tokens, s.new_tokens == 1 ? "" : "s"), decoding,
      s.reread ? fmt::format("; {} times at the end of the context of {}, half of it read again", s.reread,
                             r.o.context)
               : "");
  if (complete < texts.size())
    run_failed("interrupted by signal {}: {} of {} texts are complete", interrupt_signal(), complete,
               texts.size());
}

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("generate",
                         "samples text from the newest checkpoint of a run, or from model.from\n"
                         "example: trireme generate runs/demo/run.toml --prompt 'def main(' --stop 'class '\n"
                         "example: trireme generate runs/demo/run.toml --prompts questions.jsonl "
                         "--temperature 0 --out answers.jsonl");
  auto r = std::make_shared<GenerateRequest>();
  add_used_run(*verb, r->run);
  auto* prompt =
      verb->add_option("--prompt", r->prompt, "text to go on from; default: the start of a document");
  verb->add_option(
          "--prompts", r->prompts,
          "file of prompts: one a line, or JSON lines with \"prompt\" (.jsonl); --json and --out answer\n"
          "in JSON lines")
      ->excludes(prompt);
  verb->add_option("--out", r->out, "file for the texts, JSON lines; default: standard output");
  verb->add_option("--samples", r->samples, "texts per prompt, one after the other; the prompt is read once")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  verb->add_option("--tokens", r->o.tokens, "new tokens of a text, at most")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  verb->add_option(
          "--stop", r->stops,
          "ends a text before this string, taken as it is: a line's end is $'\\n' in bash (may be repeated)")
      ->take_all()
      ->allow_extra_args(false);
  add_sampling(*verb, r->o.sample);
  verb->add_option(
          "--context", r->o.context,
          "tokens that the model sees; at its end the last half is read again. Default: data.seq_len,\n"
          "or max_positions of model.from")
      ->check(CLI::Range(2, 1 << 30));
  add_layout(*verb, r->layout);
  verb->add_option("--parallel", r->o.parallel, "texts at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 32));
  verb->callback([r, verb] {
    if (r->o.sample.temperature < kGreedy) note_unused_draws(*verb);
    generate_verb(*r);
  });
}

}  // namespace trireme::cli
