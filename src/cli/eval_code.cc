// trireme eval --code: programs of a model, judged in the sandbox; pass@k.
#include <chrono>
#include <cmath>
#include <thread>

#include "base/counted.h"
#include "base/json.h"
#include "base/say.h"
#include "cli/eval.h"
#include "cli/prompts.h"
#include "cli/sampling.h"
#include "cli/use_model.h"
#include "cli/used_keys.h"
#include "device/cpu/cpu_device.h"
#include "generate/complete.h"
#include "tasks/code_score.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

double clock_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct CodeRun {
  std::vector<CodeSample> samples;
  std::string where;
  int64_t step = 0;
  double generate_s = 0, judge_s = 0;
};

// The task's prompt, or a request by the model's chat template.
std::vector<std::string> prompts_of(const CodeEval& q, const RunSpec& run,
                                    const std::vector<CodeTask>& tasks) {
  std::vector<std::string> prompts;
  const std::optional<ChatTemplate> chat = q.chat ? chat_template_of(run) : std::nullopt;
  if (q.chat && !chat)
    bad_request("--chat: no chat template next to {}; leave --chat out", tokenizer_path(run).string());
  for (const CodeTask& t : tasks) {
    if (!chat) {
      prompts.push_back(t.prompt);
      continue;
    }
    ChatInput input;
    input.messages.push_back({{"role", "user"}, {"content", chat_request(t)}});
    input.add_generation_prompt = true;
    prompts.push_back(chat->render(input).text);
  }
  return prompts;
}

// per_task samples of each task, one task after the other, so that they share their prompt's cache.
void generate_samples(const CodeEval& q, const RunRequest& request, const std::vector<CodeTask>& tasks,
                      CodeRun& c) {
  const UsedRun used = load_used(request);
  const RunSpec& run = used.run;
  note_fp8("eval", run);
  const Tokenizer tokenizer = tokenizer_of(run);
  refuse_foreign_tokenizer(run, tokenizer);
  GenerateOptions o{.sample = q.sample,
                    .tokens = q.tokens,
                    .context = context_of(run, q.context),
                    .end_of_text = tokenizer.find_end_of_text().value_or(-1),
                    .vocab = tokenizer.vocab_size(),
                    .parallel = q.parallel};
  const Sampler good_options(o.sample);
  const std::vector<std::string> asked = prompts_of(q, run, tasks);
  std::vector<std::string> texts;
  for (size_t t = 0; t < tasks.size(); t++)
    for (int64_t i = 0; i < q.per_task; i++) {
      texts.push_back(asked[t]);
      c.samples.push_back({t, ""});
    }
  std::vector<std::string> stops = q.chat ? std::vector<std::string>{} : code_stop_strings();
  stops.insert(stops.end(), q.stops.begin(), q.stops.end());
  const Prompts prompts = encode_prompts(tokenizer, texts);
  const GenerationShape shape = generation_shape(prompts, o);
  const auto book = [&](const RunSpec& of, int threads, int pp_rank) {
    return book_generation(of, threads, shape, pp_rank);
  };
  Completions all;
  use_model(used, q.layout, book, [&](LoadedModel& m, const ModelMemory&) {
    const double begin = clock_s();
    Watched watched("generate", "samples");
    all = complete_texts(
        *m.runner, tokenizer, prompts, o, std::vector(prompts.size(), stops),
        [&](int64_t done) { watched(done, int64_t(prompts.size())); }, [] { return interrupt_requested(); });
    c.generate_s = clock_s() - begin;
    c.where = m.where;
    c.step = m.step;
  });
  if (interrupt_requested())
    run_failed("interrupted by signal {}: there is no result, the same command starts again",
               interrupt_signal());
  for (size_t i = 0; i < c.samples.size(); i++) {
    const std::string& text = all.texts[i].text;
    c.samples[i].completion = q.chat ? code_of_answer(text, tasks[c.samples[i].task]) : text;
  }
}

std::string sample_lines(const std::vector<CodeTask>& tasks, const CodeRun& c,
                         const std::vector<SandboxResult>& results) {
  std::string lines;
  for (size_t i = 0; i < results.size(); i++) {
    const std::string& said = results[i].output;
    lines += ordered_json{{"task_id", tasks[c.samples[i].task].id},
                          {"completion", c.samples[i].completion},
                          {"passed", results[i].end == SandboxEnd::completed},
                          {"result", name_of(results[i].end)},
                          {"seconds", results[i].wall_s},
                          {"output", said.substr(said.size() - std::min<size_t>(said.size(), 1000))}}
                 .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
             "\n";
  }
  return lines;
}

// The values of -k, or those of 1, 5, 10 and 100 that no task's number of samples is below.
std::vector<int64_t> ks_of(const CodeEval& q, const std::vector<CodeTask>& tasks, const CodeRun& c) {
  if (!q.ks.empty()) return q.ks;
  std::vector<int64_t> counts(tasks.size());
  for (const CodeSample& s : c.samples) counts[s.task]++;
  int64_t least = 0;
  for (int64_t n : counts)
    if (n > 0) least = least == 0 ? n : std::min(least, n);
  std::vector<int64_t> ks;
  for (int64_t k : {1, 5, 10, 100})
    if (k <= least) ks.push_back(k);
  return ks;
}

void print_json(const CodeEval& q, const CodeRun& c, const CodeScore& score, int64_t judged_tasks) {
  ordered_json pass = ordered_json::object();
  for (const auto& [k, m] : score.pass)  // NaN, the error of one task's mean, is null
    pass[std::to_string(k)] = {
        {"mean", m.mean}, {"standard_error", m.standard_error}, {"low", m.low}, {"high", m.high}};
  ordered_json ends = ordered_json::object();
  for (size_t e = 0; e < kSandboxEnds; e++) ends[std::string(name_of(SandboxEnd(e)))] = score.ends[e];
  ordered_json j{{"pass_at_k", pass},           {"tasks", judged_tasks},
                 {"samples", c.samples.size()}, {"results", ends},
                 {"judge_s", c.judge_s},        {"judged_per_s", double(c.samples.size()) / c.judge_s}};
  if (c.generate_s > 0) {
    j["generate_s"] = c.generate_s;
    j["generated_per_s"] = double(c.samples.size()) / c.generate_s;
    j["temperature"] = q.sample.temperature;
    j["top_k"] = q.sample.top_k;
    j["top_p"] = q.sample.top_p;
    j["step"] = c.step;
    j["model"] = c.where;
  }
  print_text("{}\n", j.dump(2));
}

void print_table(const CodeEval& q, const CodeRun& c, const CodeScore& score, int64_t judged_tasks) {
  for (const auto& [k, m] : score.pass)
    print_text("{}: pass@{} {:.4f}{}, 95 % interval {:.4f} to {:.4f}, over {} of {}\n", c.where, k, m.mean,
               std::isnan(m.standard_error) ? "" : fmt::format(" +- {:.4f}", m.standard_error), m.low, m.high,
               counted(judged_tasks, "task"), q.tasks);
  std::string ends;
  for (size_t e = 0; e < kSandboxEnds; e++)
    if (score.ends[e] > 0)
      ends += fmt::format("{}{} {}", ends.empty() ? "" : ", ", score.ends[e], name_of(SandboxEnd(e)));
  print_text("{}: {}\n", counted(c.samples.size(), "sample"), ends);
  const std::string generated =
      c.generate_s > 0 ? fmt::format("generated in {} ({:.3g} samples/s), ", human_seconds(c.generate_s),
                                     double(c.samples.size()) / c.generate_s)
                       : "";
  print_text("{}judged in {} ({:.3g} samples/s)\n", generated, human_seconds(c.judge_s),
             double(c.samples.size()) / c.judge_s);
}

}  // namespace

void evaluate_code(const CodeEval& q, const RunRequest& request) {
  const std::vector<CodeTask> tasks = read_code_tasks(q.tasks);
  const bool given = q.canonical || !q.samples.empty();
  if (given && !request.file.empty())
    bad_request("RUN = {:?}: not used with --samples and --canonical, which bring the programs",
                request.file);
  if (!given && request.file.empty())
    bad_request(
        "eval --code takes RUN: a run file, or the folder of a run; or programs by --samples or --canonical");
  const Sandbox sandbox(find_interpreter(q.python));  // before the long work
  CodeRun c;
  if (q.canonical) {
    for (size_t t = 0; t < tasks.size(); t++) c.samples.push_back({t, tasks[t].solution});
    c.where = "canonical solutions";
  } else if (!q.samples.empty()) {
    c.samples = read_code_samples(q.samples, tasks);
    c.where = q.samples;
  }
  if (!q.out.empty()) write_text_atomic(q.out, "");
  if (!given) generate_samples(q, request, tasks, c);
  const std::vector<int64_t> ks = ks_of(q, tasks, c);
  SandboxLimits limits{.wall_s = 2 * q.time_limit + 1, .memory = q.memory_mib << 20};
  limits.cpu_s = std::max<int64_t>(1, int64_t(std::ceil(q.time_limit)));
  const int threads = q.threads > 0 ? q.threads : cpu::usable_cores();
  const double begin = clock_s();
  Watched watched("judge", "samples");
  const std::vector<SandboxResult> results =
      judge_samples(sandbox, limits, tasks, c.samples, threads,
                    [&](int64_t done) { watched(done, int64_t(c.samples.size())); });
  c.judge_s = clock_s() - begin;
  if (!q.out.empty()) write_text_atomic(q.out, sample_lines(tasks, c, results));
  const CodeScore score = score_samples(tasks, c.samples, results, ks);
  int64_t judged_tasks = 0;
  for (const auto& [passed, all] : score.of_task) judged_tasks += all > 0;
  request.json ? print_json(q, c, score, judged_tasks) : print_table(q, c, score, judged_tasks);
}

CLI::Option* add_code_options(CLI::App& verb, CodeEval& q) {
  auto* code = verb.add_option(
      "--code", q.tasks,
      "programming tasks in HumanEval's format, JSON lines, also .gz: pass@k. Programs run in\n"
      "a sandbox (docs/evaluation.md)");
  auto needs = [&](CLI::Option* o) { return o->needs(code); };
  auto* samples = needs(verb.add_option(
      "--samples", q.samples, "judges these programs, no model's: JSON lines {\"task_id\", \"completion\"}"));
  needs(verb.add_flag("--canonical", q.canonical, "judges the tasks' own solutions"))->excludes(samples);
  needs(verb.add_flag("--chat", q.chat,
                      "asks by the model's chat template, and takes the code block of each answer"));
  needs(verb.add_option("-n,--per-task", q.per_task, "samples per task"))
      ->capture_default_str()
      ->check(CLI::Range(1, 10000));
  needs(verb.add_option("-k", q.ks, "k of pass@k, several with commas (default: 1, 5, 10, 100 up to -n)"))
      ->delimiter(',')
      ->check(CLI::Range(1, 10000));
  for (CLI::Option* o : add_sampling(verb, q.sample)) needs(o);
  needs(verb.add_option("--tokens", q.tokens, "new tokens of a sample, at most"))
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  needs(verb.add_option("--stop", q.stops, "one more string that ends a sample (may be repeated)"))
      ->take_all()
      ->allow_extra_args(false);
  needs(verb.add_option("--parallel", q.parallel, "texts at once"))
      ->capture_default_str()
      ->check(CLI::Range(1, 32));
  needs(verb.add_option("--time-limit", q.time_limit,
                        "seconds of CPU time of a program; twice that and 1 s of wall time"))
      ->capture_default_str()
      ->check(CLI::Range(0.1, 3600.0));
  needs(verb.add_option("--memory-limit", q.memory_mib, "MiB of a program"))
      ->capture_default_str()
      ->check(CLI::Range(64, 1 << 20));
  needs(verb.add_option("--threads", q.threads, "programs at once (default: this process's cores)"))
      ->check(CLI::Range(1, 1024));
  needs(verb.add_option("--python", q.python, "interpreter of the programs"))->capture_default_str();
  return code;
}

}  // namespace trireme::cli
