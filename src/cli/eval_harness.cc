// trireme eval --tasks FILE.yaml: a task in the format of lm-evaluation-harness.
#include <cmath>

#include "base/json.h"
#include "base/say.h"
#include "cli/eval.h"
#include "cli/prompts.h"
#include "generate/complete.h"
#include "tasks/harness_score.h"
#include "text/chat_template.h"
#include "train/choices.h"
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
    std::vector<ScoredText> texts;
    std::vector<size_t> request_of;
    for (size_t i = 0; i < requests.size(); i++) {
      const HarnessRequest& r = requests[i];
      for (size_t c = 0; c < r.continuations.size(); c++) {
        if (task.kind == HarnessTask::Kind::loglikelihood_rolling)
          add_windows(r.continuations[c], texts);
        else
          texts.push_back(choice_text(task, i, r.contexts[c], r.continuations[c]));
        request_of.resize(texts.size(), i);
      }
    }
    HarnessAnswers a = scored(std::move(texts), request_of, requests.size());
    if (task.kind == HarnessTask::Kind::loglikelihood_rolling)
      for (std::vector<double>& windows : a.log_likelihoods) {
        double sum = 0;
        for (double w : windows) sum += w;
        windows = {sum};
      }
    return a;
  }

 private:
  ScoredText choice_text(const HarnessTask& task, size_t i, const std::string& context,
                         const std::string& choice) const {
    ScoredText t = scored_text(tokenizer_, context, choice);
    if (t.scored > context_)
      bad_request("{}: document {}: a choice has {} tokens, but the model sees {} at once", task.file, i + 1,
                  t.scored, context_);
    return t;
  }

  // The harness's rolling windows. Each token is scored once. The first window begins with the token that
  // starts a document, a later one with the last token of the window before. The last window takes as much
  // context as fits, and scores the rest.
  void add_windows(const std::string& text, std::vector<ScoredText>& texts) const {
    std::vector<int32_t> ids = {document_start(tokenizer_, used_.run)};
    const std::vector<int32_t> tokens = tokenizer_.encode(text);
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    const auto n = int64_t(ids.size());
    for (int64_t at = 1; at < n; at += context_) {
      const int64_t end = std::min(n, at + context_);
      const int64_t begin = end == n ? std::max<int64_t>(0, std::min(at - 1, n - 1 - context_)) : at - 1;
      texts.push_back({{ids.begin() + begin, ids.begin() + end}, end - at});
    }
  }

  HarnessAnswers scored(std::vector<ScoredText> texts, const std::vector<size_t>& request_of,
                        size_t requests) {
    const ScoredBatches batches(std::move(texts), used_.run, context_);
    HarnessAnswers a;
    a.log_likelihoods.resize(requests);
    a.truncated = batches.truncated();
    const LoadedModel m = load(a, book_evaluation(used_.run, threads_of(used_.run), batches.shapes()));
    Watched watched("evaluate", "texts");
    const std::vector<double> all =
        batches.run(*m.runner, [&](int64_t done) { watched(done, batches.count()); });
    for (size_t i = 0; i < all.size(); i++) a.log_likelihoods[request_of[i]].push_back(all[i]);
    return a;
  }

  // The most likely tokens, up to the task's stop strings. As the harness, a context keeps its last tokens
  // that leave room for an answer.
  HarnessAnswers generated(const HarnessTask& task, const std::vector<HarnessRequest>& requests) {
    GenerateOptions o{.sample = {.temperature = 0},
                      .tokens = task.most_tokens,
                      .context = context_,
                      .end_of_text = tokenizer_.find_end_of_text().value_or(-1),
                      .vocab = tokenizer_.vocab_size(),
                      .parallel = 16};
    std::vector<std::string> texts;
    for (const HarnessRequest& r : requests) texts.push_back(r.contexts[0]);
    Prompts prompts = encode_prompts(tokenizer_, texts);
    HarnessAnswers a;
    const int64_t most = context_ - task.most_tokens;
    if (most < 1)
      bad_request("{}: answers of {} tokens do not fit into a context of {}", task.file, task.most_tokens,
                  context_);
    for (std::vector<int32_t>& p : prompts)
      if (int64_t(p.size()) > most) {
        p.erase(p.begin(), p.end() - most);
        a.truncated++;
      }
    const LoadedModel m =
        load(a, book_generation(used_.run, threads_of(used_.run), generation_shape(prompts, o)));
    Watched watched("generate", "answers");
    Completions all = complete_texts(
        *m.runner, tokenizer_, prompts, o, std::vector(prompts.size(), stops_of(task)),
        [&](int64_t done) { watched(done, int64_t(prompts.size())); }, [] { return interrupt_requested(); });
    if (interrupt_requested())
      run_failed("interrupted by signal {}: there is no result, the same command starts again",
                 interrupt_signal());
    for (Completion& c : all.texts) a.texts.push_back(std::move(c.text));
    return a;
  }

  static std::vector<std::string> stops_of(const HarnessTask& task) {
    std::vector<std::string> stops;
    for (const std::string& s : task.until)
      if (!s.empty()) stops.push_back(s);
    return stops;
  }

  LoadedModel load(HarnessAnswers& a, int64_t arena) const {
    LoadedModel m = load_model(used_.run, arena, used_.checkpoint);
    a.step = m.step;
    a.where = m.where;
    return m;
  }

  const HarnessEval& q_;
  const UsedRun& used_;
  Tokenizer tokenizer_;
  int64_t context_;

  // lm-evaluation-harness takes the beginning-of-text token if there is one, else the end-of-text token.
  static int32_t document_start(const Tokenizer& tokenizer, const RunSpec& run);
};

int32_t HarnessModel::document_start(const Tokenizer& tokenizer, const RunSpec& run) {
  const auto special = special_tokens(tokenizer_path(run).parent_path());
  const auto begin = special.find("bos_token");
  const auto id = begin == special.end() ? std::nullopt : tokenizer.find_added(begin->second);
  return id ? *id : tokenizer.end_of_text();
}

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
  if (task.kind == HarnessTask::Kind::multiple_choice)
    return score_choices(task, requests, a.log_likelihoods);
  if (task.kind == HarnessTask::Kind::generate_until) return score_texts(task, requests, a.texts);
  std::vector<double> sums;
  for (const std::vector<double>& one : a.log_likelihoods) sums.push_back(one[0]);
  return score_rolling(task, requests, sums);
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
    print_text("{}: {}: {}{} {:.4f}{}, over {} documents, {} examples each\n", a.where, task.name, s.metric,
               s.filter == "none" ? "" : " (" + s.filter + ")", s.value,
               std::isnan(s.standard_error) ? "" : fmt::format(" +- {:.4f}", s.standard_error),
               requests.size(), task.fewshot);
  if (a.truncated > 0)
    print_text("{} texts lost their beginning: they are longer than the context\n", a.truncated);
}

}  // namespace trireme::cli
