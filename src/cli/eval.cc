// trireme eval RUN.toml: loss and perplexity on a token shard, or multiple-choice questions.
#include <cmath>
#include <optional>

#include "base/interrupt.h"
#include "base/json.h"
#include "cli/eval.h"
#include "cli/use_model.h"
#include "cli/used_keys.h"
#include "data/loader.h"
#include "train/batches.h"
#include "train/multiple_choice.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

struct EvalRequest {
  RunRequest run;
  std::string data, tasks, out, layout;
  int64_t context = 0;
  CodeEval code;
  HarnessEval harness;
};

bool is_yaml(const std::string& file) {
  return file.ends_with(".yaml") || file.ends_with(".yml");
}

void print_perplexity(const EvalRequest& r, const RunSpec& run, const Texts& shards, const LoadedModel& m) {
  ordered_json each = ordered_json::array();
  double sum = 0;
  EvalResult all;
  for (const std::string& shard : shards) {
    Watched watched("evaluate", "windows");
    EvalResult e = evaluate_shard(*m.runner, run, shard, 0, std::ref(watched));
    sum += e.loss * double(e.tokens), all.tokens += e.tokens;
    all.loss = shards.size() > 1 ? sum / double(all.tokens) : e.loss;
    each.push_back({{"shard", shard}, {"loss", e.loss}, {"tokens", e.tokens}});
    if (!r.run.json)
      print_text("{}: loss {:.4f} nats per token, perplexity {:.2f}, over {} predicted tokens of {}\n",
                 m.where, e.loss, std::exp(e.loss), e.tokens, shard);
  }
  if (r.run.json) {
    ordered_json j = {{"loss", all.loss},
                      {"perplexity", std::exp(all.loss)},
                      {"tokens", all.tokens},
                      {"step", m.step},
                      {"model", m.where}};
    if (shards.size() > 1) j["shards"] = each;
    print_text("{}\n", j.dump(2));
  } else if (shards.size() > 1) {
    print_text("{}: loss {:.4f} nats per token, perplexity {:.2f}, over all {} predicted tokens\n", m.where,
               all.loss, std::exp(all.loss), all.tokens);
  }
}

void perplexity(const EvalRequest& r, const UsedRun& used) {
  const RunSpec& run = used.run;
  Texts shards = r.data.empty() ? run.data.valid : Texts(r.data);
  if (shards.empty()) bad_request("data.valid is empty: name a token shard with --data");
  for (const std::string& shard : shards)
    naming_key(r.data.empty() ? "data.valid" : "--data", shard, [&] { check_shard(shard, run.model.vocab); });
  refuse_foreign_shards(run, shards);
  use_model(used, r.layout, book_inference,
            [&](LoadedModel& m, const ModelMemory&) { print_perplexity(r, run, shards, m); });
}

// A line a question: what the model held of each choice.
std::string details(const std::vector<ChoiceQuestion>& questions, const std::vector<ChoiceScore>& scores) {
  std::string lines;
  for (size_t i = 0; i < questions.size(); i++)
    lines += ordered_json{{"line", questions[i].line},
                          {"answer", questions[i].answer},
                          {"raw", scores[i].raw},
                          {"per_byte", scores[i].per_byte},
                          {"log_likelihood", scores[i].log_likelihood}}
                 .dump() +
             "\n";
  return lines;
}

void multiple_choice(const EvalRequest& r, const UsedRun& used) {
  const RunSpec& run = used.run;
  Tokenizer tokenizer = tokenizer_of(run);
  refuse_foreign_tokenizer(run, tokenizer);
  ChoiceBatches batches(tokenizer, read_choices(r.tasks), run, context_of(run, r.context));
  if (!r.out.empty()) write_text_atomic(r.out, "");  // refused now rather than after the work
  const auto book = [&](const RunSpec& of, int threads, int pp_rank) {
    return book_evaluation(of, threads, batches.shapes(), pp_rank);
  };
  ChoiceResult e;
  std::string where;
  int64_t step = 0;
  use_model(used, r.layout, book, [&](LoadedModel& m, const ModelMemory&) {
    Watched watched("evaluate", "choices");
    e = batches.run(*m.runner, [&](int64_t done) { watched(done, batches.count()); });
    where = m.where;
    step = m.step;
  });
  if (!r.out.empty()) write_text_atomic(r.out, details(batches.questions(), e.scores));
  if (r.run.json) {
    // NaN (the error of one question's mean) is null.
    print_text("{}\n", ordered_json{{"accuracy", e.raw.mean},
                                    {"accuracy_stderr", e.raw.standard_error},
                                    {"accuracy_per_byte", e.per_byte.mean},
                                    {"accuracy_per_byte_stderr", e.per_byte.standard_error},
                                    {"chance", e.chance},
                                    {"questions", e.scores.size()},
                                    {"truncated", e.truncated},
                                    {"step", step},
                                    {"model", where}}
                           .dump(2));
    return;
  }
  auto show = [](const Accuracy& a) {
    return std::isnan(a.standard_error) ? fmt::format("{:.4f}", a.mean)
                                        : fmt::format("{:.4f} +- {:.4f}", a.mean, a.standard_error);
  };
  print_text("{}: accuracy {}, by likelihood per byte {}, over {} questions of {}; guessing reaches {:.4f}\n",
             where, show(e.raw), show(e.per_byte), e.scores.size(), r.tasks, e.chance);
  if (e.truncated > 0)
    print_text(
        "{} choices lost the beginning of their prompt: together they are longer than the context of {}\n",
        e.truncated, context_of(run, r.context));
}

}  // namespace

void Watched::operator()(int64_t done, int64_t total) {
  if (!bar_) bar_.emplace(verb_, total);
  bar_->update(done);
  if (!interrupt_requested() || done == total) return;
  bar_->finish();
  run_failed("interrupted by signal {} after {} of {} {}: there is no result, the same command starts again",
             interrupt_signal(), done, total, what_);
}

void add_eval(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("eval",
                         "loss and perplexity on a token shard, accuracy on multiple-choice questions, or "
                         "pass@k on programming\n"
                         "tasks, of the newest checkpoint or of model.from\n"
                         "example: trireme eval runs/demo/run.toml\n"
                         "example: trireme eval runs/demo/run.toml --tasks arc-easy.jsonl --json\n"
                         "example: trireme eval runs/smol.toml --tasks arc_easy.yaml --fewshot 5\n"
                         "example: trireme eval runs/code --code HumanEval.jsonl.gz -n 20 --temperature 0.2");
  auto r = std::make_shared<EvalRequest>();
  add_used_run(*verb, r->run);
  verb->get_option("RUN")->required(false);  // --code can judge programs from a file
  auto* data = verb->add_option("--data", r->data, "token shard; default: data.valid of the run file");
  auto* tasks = verb->add_option("--tasks", r->tasks,
                                 "questions, JSON lines: {\"prompt\": \"...\", \"choices\": [\"...\", ...], "
                                 "\"answer\": 0 or \"A\"};\n"
                                 "or a task file of lm-evaluation-harness, YAML, with local documents")
                    ->excludes(data);
  verb->add_option("--fewshot", r->harness.fewshot,
                   "examples before each question (default: num_fewshot of the file)")
      ->needs(tasks)
      ->check(CLI::Range(0, 1000));
  verb->add_option("--limit", r->harness.limit, "documents, the first ones (default: all)")
      ->needs(tasks)
      ->check(CLI::Range(1, 1 << 30));
  auto* code = add_code_options(*verb, r->code);
  code->excludes(data)->excludes(tasks);
  verb->add_option("--out", r->out,
                   "file for the likelihood of every choice, or for every sample and its result, JSON lines");
  verb->add_option("--context", r->context,
                   "tokens that the model sees of a question or program. Default: data.seq_len, or "
                   "max_positions of model.from")
      ->check(CLI::Range(2, 1 << 30));
  add_layout(*verb, r->layout);
  verb->callback([r, verb, tasks, code] {
    if (tasks->count() == 0 && code->count() == 0)
      for (const char* name : {"--out", "--context"})
        if (verb->count(name) > 0) bad_request("{} takes --tasks or --code", name);
    if (code->count() == 0 && r->run.file.empty())
      bad_request("eval takes RUN: a run file, or the folder of a run");
    if (!r->run.file.empty()) check_set_keys("eval", r->run);
    if (code->count() > 0) {
      r->code.out = r->out;
      r->code.context = r->context;
      r->code.layout = r->layout;
      return evaluate_code(r->code, r->run);
    }
    const UsedRun used = load_used(r->run);
    note_fp8("eval", used.run);
    if (is_yaml(r->tasks)) {
      r->harness.file = r->tasks;
      r->harness.out = r->out;
      r->harness.context = r->context;
      r->harness.layout = r->layout;
      return evaluate_harness(r->harness, used, r->run.json);
    }
    for (const char* name : {"--fewshot", "--limit"})
      if (verb->count(name) > 0) bad_request("{} takes --tasks FILE.yaml", name);
    r->tasks.empty() ? perplexity(*r, used) : multiple_choice(*r, used);
  });
}

}  // namespace trireme::cli
