// trireme eval --tasks FILE.yaml: a task in the format of lm-evaluation-harness.
#include <cmath>

#include "base/counted.h"
#include "base/json.h"
#include "base/say.h"
#include "cli/eval.h"
#include "cli/harness_texts.h"
#include "cli/prompts.h"
#include "cli/use_model.h"
#include "generate/complete.h"
#include "tasks/harness_score.h"
#include "train/scored_batches.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

// The model's answers to all requests.
struct HarnessAnswers {
  std::vector<std::vector<double>> log_likelihoods;  // by request, then by choice; or one, the whole text's
  std::vector<std::string> texts;
  int64_t truncated = 0;  // texts that lost their beginning
  int64_t step = 0;
  std::string where;
};

class HarnessModel {
 public:
  HarnessModel(const HarnessEval& q, const UsedRun& used)
      : q_(q), used_(used), tokenizer_(tokenizer_of(used.run)), context_(context_of(used.run, q.context)) {
    refuse_foreign_tokenizer(used.run, tokenizer_);
  }

  HarnessAnswers answer(const HarnessTask& task, const std::vector<HarnessRequest>& requests) {
    if (task.kind == HarnessTask::Kind::generate_until) return generated(task, requests);
    return scored(task, harness_texts(task, requests, tokenizer_, used_.run, context_), requests.size());
  }

 private:
  HarnessAnswers scored(const HarnessTask& task, const HarnessTexts& texts, size_t requests) {
    const ScoredBatches batches(texts.texts, used_.run, context_);
    HarnessAnswers a;
    a.truncated = batches.truncated();
    const auto book = [&](const RunSpec& of, int threads, int pp_rank) {
      return book_evaluation(of, threads, batches.shapes(), pp_rank);
    };
    std::vector<double> all;
    use(a, book, [&](StageRunner& runner) {
      Watched watched("evaluate", "texts");
      all = batches.run(runner, [&](int64_t done) { watched(done, batches.count()); });
    });
    a.log_likelihoods = by_request(task, texts, requests, all);
    return a;
  }

  // The most likely tokens, up to the task's stop strings.
  HarnessAnswers generated(const HarnessTask& task, const std::vector<HarnessRequest>& requests) {
    GenerateOptions o{.sample = {.temperature = 0},
                      .tokens = task.most_tokens,
                      .context = context_,
                      .end_of_text = tokenizer_.find_end_of_text().value_or(-1),
                      .vocab = tokenizer_.vocab_size(),
                      .parallel = 16};
    const HarnessPrompts cut = harness_prompts(task, requests, tokenizer_, context_);
    const Prompts& prompts = cut.prompts;
    HarnessAnswers a;
    a.truncated = cut.truncated;
    const GenerationShape shape = generation_shape(prompts, o);
    const auto book = [&](const RunSpec& of, int threads, int pp_rank) {
      return book_generation(of, threads, shape, pp_rank);
    };
    Completions all;
    use(a, book, [&](StageRunner& runner) {
      Watched watched("generate", "answers");
      all = complete_texts(
          runner, tokenizer_, prompts, o, std::vector(prompts.size(), stops_of(task)),
          [&](int64_t done) { watched(done, int64_t(prompts.size())); },
          [] { return interrupt_requested(); });
    });
    if (interrupt_requested())
      run_failed("interrupted by signal {}: there is no result, the same command starts again",
                 interrupt_signal());
    for (Completion& c : all.texts) a.texts.push_back(std::move(c.text));
    return a;
  }

  void use(HarnessAnswers& a, const BookModel& book, const std::function<void(StageRunner&)>& work) const {
    use_model(used_, q_.layout, book, [&](LoadedModel& m, const ModelMemory&) {
      work(*m.runner);
      a.step = m.step;
      a.where = m.where;
    });
  }

  const HarnessEval& q_;
  const UsedRun& used_;
  Tokenizer tokenizer_;
  int64_t context_;
};

std::string request_lines(const std::vector<HarnessRequest>& requests, const HarnessAnswers& a) {
  std::string lines;
  for (size_t i = 0; i < requests.size(); i++) {
    const HarnessRequest& r = requests[i];
    ordered_json j{{"document", i}, {"context", r.contexts[0]}};
    if (a.texts.empty()) {
      j["continuations"] = r.continuations;
      j["log_likelihoods"] = a.log_likelihoods[i];
      if (!r.right.empty()) j["right"] = r.right;
    } else {
      j["text"] = a.texts[i];
      j["answers"] = r.answers;
    }
    lines += j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  return lines;
}

std::vector<HarnessScore> score_answers(const HarnessTask& task, const std::vector<HarnessRequest>& requests,
                                        const HarnessAnswers& a) {
  if (task.kind == HarnessTask::Kind::generate_until) return score_texts(task, requests, a.texts);
  return score_likelihoods(task, requests, a.log_likelihoods);
}

}  // namespace

void evaluate_harness(const HarnessEval& q, const UsedRun& used, bool json) {
  const HarnessTask task = read_harness_task(q.file, q.fewshot);
  const std::vector<HarnessRequest> requests = harness_requests(task, q.limit);
  if (!q.out.empty()) write_text_atomic(q.out, "");
  const HarnessAnswers a = HarnessModel(q, used).answer(task, requests);
  if (!q.out.empty()) write_text_atomic(q.out, request_lines(requests, a));
  const std::vector<HarnessScore> scores = score_answers(task, requests, a);
  if (json) {
    ordered_json results = ordered_json::object();
    for (const HarnessScore& s : scores) {
      results[s.metric + "," + s.filter] = s.value;
      results[s.metric + "_stderr," + s.filter] = s.standard_error;  // NaN is null
    }
    print_text("{}\n", ordered_json{{"task", task.name},
                                    {"results", results},
                                    {"documents", requests.size()},
                                    {"fewshot", task.fewshot},
                                    {"truncated", a.truncated},
                                    {"step", a.step},
                                    {"model", a.where}}
                           .dump(2));
    return;
  }
  for (const HarnessScore& s : scores)
    print_text("{}: {}: {} {:.4f}{}, over {}, {} each\n", a.where, task.name, s.name(), s.value,
               std::isnan(s.standard_error) ? "" : fmt::format(" +- {:.4f}", s.standard_error),
               counted(requests.size(), "document"), counted(task.fewshot, "example"));
  if (a.truncated > 0)
    print_text("{} cut at the beginning: longer than the context\n", counted(a.truncated, "text"));
}

}  // namespace trireme::cli
