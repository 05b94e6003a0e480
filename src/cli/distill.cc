// trireme distill MODEL --tasks FILE --out DIR: simple self-distillation (Zhang et al., 2026, arXiv
// 2604.01193). One sample per prompt from the frozen model, fine-tuning on the unverified samples, and pass@k
// over temperatures before and after. Each stage leaves a file in DIR; a stage whose file exists is skipped.
#include <sys/wait.h>

#include <fstream>

#include "base/counted.h"
#include "base/json.h"
#include "base/json_depth.h"
#include "base/say.h"
#include "base/timed.h"
#include "cli/child.h"
#include "cli/cli.h"
#include "cli/distill.h"
#include "cli/eval.h"
#include "cli/prompts.h"
#include "generate/complete.h"
#include "tasks/code_tasks.h"
#include "train/run_lock.h"
#include "tune/distill_report.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

// Runs this program with the words; stdout goes to `out`, or to stderr if it is empty.
void run_self(const std::vector<std::string>& words, const fs::path& out) {
  const int status = wait_for_child(start_self(words, {.out = out}));
  if (interrupt_requested()) throw Error("interrupted; the same command resumes", Fault::interrupted);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
    bad_request("trireme {} refused its options, see above", words[0]);
  run_failed("trireme {} ended with {}", words[0],
             WIFEXITED(status) ? fmt::format("exit code {}", WEXITSTATUS(status))
                               : fmt::format("signal {}", WTERMSIG(status)));
}

// A stage is done if its file exists. Notes its seconds.
template <class Work>
void stage(const DistillRequest& r, const fs::path& file, const std::string& name, Work work) {
  std::error_code none;
  if (fs::exists(file, none)) return;
  say("{}\n", name);
  const double begin = now_s();
  work();
  append_line(fs::path(r.out) / "stages.jsonl",
              ordered_json{{"stage", name}, {"seconds", now_s() - begin}}.dump());
}

// Returns the number of whole lines of the file, and cuts off what a crash left behind them. 0: there is
// none.
size_t whole_lines(const fs::path& file) {
  std::error_code none;
  if (!fs::exists(file, none)) return 0;
  const std::string text = read_text(file);
  size_t lines = 0, end = 0;
  for (size_t at;
       (at = text.find('\n', end)) != text.npos && shallow_json(text.substr(end, at - end)).is_object();
       end = at + 1)
    lines++;
  if (end < text.size()) write_text_atomic(file, text.substr(0, end));
  return lines;
}

// Samples are appended in groups, so that an interrupted run keeps them.
void sample(const DistillRequest& r, uint64_t seed, const fs::path& file) {
  RunRequest request;
  request.file = base_file(r).string();
  const UsedRun used = load_used(request);
  const RunSpec& run = used.run;
  const Tokenizer tokenizer = tokenizer_of(run);
  const Asked asked = asked_of(r, run);
  const fs::path part = file.string() + ".part";
  const size_t done = whole_lines(part);
  GenerateOptions o{.sample = {r.temperature, r.top_k, r.top_p, seed},
                    .tokens = r.tokens,
                    .context = context_of(run, 0),
                    .end_of_text = tokenizer.find_end_of_text().value_or(-1),
                    .vocab = tokenizer.vocab_size(),
                    .parallel = r.parallel};
  const Prompts all = encode_prompts(tokenizer, asked.shown);
  LoadedModel m =
      load_model(run, book_generation(run, threads_of(run), generation_shape(all, o)), used.checkpoint);
  Watched watched("sample", "samples");
  constexpr size_t kGroup = 64;
  const std::vector<std::string> stops =
      r.plain || asked.messages.front().is_null() ? code_stop_strings() : std::vector<std::string>{};
  for (size_t first = done - done % kGroup; first < all.size(); first += kGroup) {
    const size_t last = std::min(all.size(), first + kGroup);
    const Prompts some(all.begin() + int64_t(first), all.begin() + int64_t(last));
    o.sample.seed = seed * 1'000'003 + first;  // draws are functions of (seed, text of the call)
    const Completions got = complete_texts(
        *m.runner, tokenizer, some, o, std::vector(some.size(), stops),
        [&](int64_t n) { watched(int64_t(first) + n, int64_t(all.size())); },
        [] { return interrupt_requested(); });
    if (interrupt_requested()) throw Error("interrupted; the same command resumes", Fault::interrupted);
    for (size_t i = std::max(first, done); i < last; i++) {
      const Completion& c = got.texts[i - first];
      const ordered_json line =
          ordered_json{{"index", i},       {"prompt", asked.shown[i]}, {"messages", asked.messages[i]},
                       {"sample", c.text}, {"tokens", c.tokens},       {"finish", name_of(c.finish)}};
      append_line(part, line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    }
  }
  fs::rename(part, file);
}

// Conversations for fine-tuning; what is left out is counted. A sample that the model did not end itself, at
// --tokens or at a stop string, is marked "cut": the training does not teach an end there.
void filter(const fs::path& samples, const fs::path& file) {
  std::ifstream in(samples);
  std::string lines;
  int64_t counts[3] = {}, cut = 0, open = 0;
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json j = shallow_json(line);
    if (!j.is_object()) run_failed("{}: a line is not a JSON object", samples.string());
    const std::string text = j.at("sample").get<std::string>();
    const SampleKind kind = kind_of_sample(text);
    counts[size_t(kind)]++;
    if (kind != SampleKind::kept) continue;
    cut += j.at("finish") == name_of(Finish::length);
    const bool is_open = j.at("finish") != name_of(Finish::end_of_text);
    open += is_open;
    ordered_json out =
        j.at("messages").is_null()
            ? ordered_json{{"prompt", j.at("prompt")}, {"completion", text}}
            : ordered_json{{"prompt", j.at("messages")},
                           {"completion", ordered_json::array({{{"role", "assistant"}, {"content", text}}})}};
    if (is_open) out["cut"] = true;
    lines += out.dump() + "\n";
  }
  say("      {} kept ({} without a sampled end, {} of these cut at --tokens); left out: {} empty, {}\n",
      counts[0], open, cut, counts[1], counted(counts[2], "stub"));
  if (counts[0] == 0) run_failed("{}: no sample is left to fine-tune on", samples.string());
  write_text_atomic(file, lines);
  write_text_atomic(file.parent_path() / "filter.json", ordered_json{{"kept", counts[0]},
                                                                     {"empty", counts[1]},
                                                                     {"stubs", counts[2]},
                                                                     {"cut", cut},
                                                                     {"without_end", open}}
                                                                .dump(2) +
                                                            "\n");
}

void tune(const DistillRequest& r, const fs::path& data, const fs::path& run, uint64_t seed) {
  const TuneRequest t = tune_request(r, data, run, seed);
  std::vector<std::string> args = {"tune",     t.model,
                                   "--chat",   t.chat.files[0],
                                   "--out",    t.out,
                                   "--epochs", fmt::format("{:g}", t.epochs),
                                   "--lr",     fmt::format("{:g}", t.lr),
                                   "--batch",  std::to_string(t.batch)};
  if (t.seq_len > 0) args.insert(args.end(), {"--seq-len", std::to_string(t.seq_len)});
  for (const std::string& set : t.sets) args.insert(args.end(), {"--set", set});
  run_self(args, "");
}

void evaluate(const DistillRequest& r, const fs::path& model, double temperature, uint64_t seed,
              const fs::path& file) {
  const fs::path part = file.string() + ".part";
  std::vector<std::string> args = {"eval",
                                   model.string(),
                                   "--code",
                                   r.tasks,
                                   "-n",
                                   std::to_string(r.per_task),
                                   "-k",
                                   r.per_task >= 5 ? "1,5" : "1",
                                   "--temperature",
                                   fmt::format("{:g}", temperature),
                                   "--top-k",
                                   std::to_string(r.eval_top_k),
                                   "--top-p",
                                   fmt::format("{:g}", r.eval_top_p),
                                   "--tokens",
                                   std::to_string(r.eval_tokens),
                                   "--parallel",
                                   std::to_string(r.parallel),
                                   "--time-limit",
                                   fmt::format("{:g}", r.time_limit),
                                   "--seed",
                                   std::to_string(seed),
                                   "--context",
                                   std::to_string(context_of_model(r)),
                                   "--json"};
  if (!r.plain) args.push_back("--chat");
  run_self(args, part);
  fs::rename(part, file);
}

SweepPoint point_of(const fs::path& file, double temperature, uint64_t seed, bool after) {
  SweepPoint p{.temperature = temperature, .seed = seed, .after = after, .pass = {}};
  const nlohmann::json j = shallow_json(read_text(file));
  if (!j.is_object() || !j.contains("pass_at_k") || !j["pass_at_k"].is_object())
    run_failed("{}: no result of eval --code; remove it, and the same command makes it again", file.string());
  for (const auto& [k, v] : j["pass_at_k"].items()) p.pass[std::stoll(k)] = v.at("mean").get<double>();
  return p;
}

void distill(const DistillRequest& r, bool json) {
  refuse_bad(r);
  const ordered_json options = options_of(r);
  install_interrupt_handlers();
  const fs::path out = r.out;
  const RunLock lock(out, "--out");
  keep_options(r, options);
  write_text_atomic(base_file(r), base_file_text(r));
  std::vector<SweepPoint> points;
  for (uint64_t seed = 1; seed <= uint64_t(r.seeds); seed++) {
    const fs::path dir = out / fmt::format("seed-{}", seed);
    make_folders(dir);
    const std::string of = fmt::format("seed {} of {}: ", seed, r.seeds);
    stage(r, dir / "samples.jsonl", of + "sample once per prompt",
          [&] { sample(r, seed, dir / "samples.jsonl"); });
    stage(r, dir / "kept.jsonl", of + "filter", [&] { filter(dir / "samples.jsonl", dir / "kept.jsonl"); });
    stage(r, dir / "tuned.done", of + "fine-tune", [&] {
      tune(r, dir / "kept.jsonl", dir / "tuned", seed);
      write_text_atomic(dir / "tuned.done", "");
    });
    for (bool after : {false, true})
      for (double t : r.eval_temperatures) {
        const fs::path file = dir / fmt::format("{}-{:g}.json", after ? "after" : "before", t);
        stage(r, file,
              of + fmt::format("evaluate {}, temperature {:g}", after ? "the tuned model" : "the model", t),
              [&] { evaluate(r, after ? dir / "tuned" : base_file(r), t, seed, file); });
        points.push_back(point_of(file, t, seed, after));
      }
  }
  const std::vector<SweepGain> gains = gains_of(points);
  const ordered_json result = {{"options", options}, {"seeds", r.seeds}, {"pass_at_k", gains_json(gains)}};
  write_text_atomic(out / "result.json", result.dump(2) + "\n");
  if (json)
    print_text("{}\n", result.dump(2));
  else
    print_text("{}", gains_text(gains));
}

}  // namespace

void add_distill(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("distill",
                                      "simple self-distillation: samples once per prompt, fine-tunes on the "
                                      "samples, measures pass@k before and "
                                      "after; the same command resumes\nexample: trireme distill "
                                      "models/smollm2 --tasks tasks.jsonl --out runs/ssd");
  auto r = std::make_shared<DistillRequest>();
  auto json = std::make_shared<bool>(false);
  verb->add_option("MODEL", r->model, "Hugging Face folder")->required();
  verb->add_option("--tasks", r->tasks, "programming tasks in HumanEval's format, for evaluation")
      ->required();
  verb->add_option("--prompts", r->prompts,
                   "prompts to sample from, JSON lines or plain lines (default: those of --tasks)");
  verb->add_option("--out", r->out, "folder of all stages")->required();
  verb->add_option("--temperature", r->temperature, "samples for fine-tuning: temperature")
      ->capture_default_str();
  verb->add_option("--top-k", r->top_k, "likewise; 0 = all")->capture_default_str();
  verb->add_option("--top-p", r->top_p, "likewise")->capture_default_str();
  verb->add_option("--tokens", r->tokens, "new tokens of a sample, at most")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  verb->add_option("--epochs", r->epochs, "passes over the samples")
      ->capture_default_str()
      ->check(CLI::Range(1e-3, 1e6));
  verb->add_option("--lr", r->lr, "peak learning rate")->capture_default_str()->check(CLI::Range(1e-12, 1e3));
  verb->add_option("--batch", r->batch, "sequences per step")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  verb->add_option("--seq-len", r->seq_len, "tokens of a sequence; default as for `tune`")
      ->check(CLI::Range(2, 1 << 24));
  verb->add_option("--set", r->sets, "key=value for the fine-tuning (may be repeated)")
      ->allow_extra_args(false);
  verb->add_option("--eval-temperatures", r->eval_temperatures, "several with commas")
      ->delimiter(',')
      ->capture_default_str();
  verb->add_option("--eval-top-k", r->eval_top_k, "of the evaluation")->capture_default_str();
  verb->add_option("--eval-top-p", r->eval_top_p, "of the evaluation")->capture_default_str();
  verb->add_option("--eval-tokens", r->eval_tokens, "of the evaluation")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  verb->add_option("-n,--per-task", r->per_task, "samples per task, temperature and seed")
      ->capture_default_str()
      ->check(CLI::Range(1, 10000));
  verb->add_option("--seeds", r->seeds, "how often the whole is done, for intervals")
      ->capture_default_str()
      ->check(CLI::Range(1, 100));
  verb->add_option("--parallel", r->parallel, "texts at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 32));
  verb->add_option("--time-limit", r->time_limit, "seconds of CPU time of a judged program")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 3600.0));
  verb->add_flag("--plain", r->plain, "prompts without a chat template");
  verb->add_flag("--json", *json, "prints the result as JSON");
  verb->callback([r, json] { distill(*r, *json); });
}

}  // namespace trireme::cli
