#include "cli/harness_texts.h"

#include "cli/source.h"
#include "text/chat_template.h"
#include "train/batches.h"
#include "train/choices.h"

namespace trireme::cli {
namespace {

bool rolling(const HarnessTask& task) {
  return task.kind == HarnessTask::Kind::loglikelihood_rolling;
}

// lm-evaluation-harness takes the beginning-of-text token if there is one, else the end-of-text token.
int32_t document_start(const Tokenizer& tokenizer, const RunSpec& run) {
  const auto special = special_tokens(tokenizer_path(run).parent_path());
  const auto begin = special.find("bos_token");
  const auto id = begin == special.end() ? std::nullopt : tokenizer.find_added(begin->second);
  return id ? *id : tokenizer.end_of_text();
}

// The harness's rolling windows. Each token is scored once. The first window begins with the token that
// starts a document, a later one with the last token of the window before. The last window takes as much
// context as fits, and scores the rest.
void add_windows(const Tokenizer& tokenizer, int32_t start, const std::string& text, int64_t context,
                 std::vector<ScoredText>& texts) {
  std::vector<int32_t> ids = {start};
  const std::vector<int32_t> tokens = tokenizer.encode(text);
  ids.insert(ids.end(), tokens.begin(), tokens.end());
  const auto n = int64_t(ids.size());
  for (int64_t at = 1; at < n; at += context) {
    const int64_t end = std::min(n, at + context);
    const int64_t begin = end == n ? std::max<int64_t>(0, std::min(at - 1, n - 1 - context)) : at - 1;
    texts.push_back({{ids.begin() + begin, ids.begin() + end}, end - at});
  }
}

ScoredText scored_choice(const HarnessTask& task, const Tokenizer& tokenizer, size_t i,
                         const std::string& context, const std::string& choice, int64_t most) {
  ScoredText t = scored_text(tokenizer, context, choice);
  if (t.scored > most)
    bad_request("{}: document {}: a choice has {} tokens, but the model sees {} at once", task.file, i + 1,
                t.scored, most);
  return t;
}

TrainTask train_task(const std::string& file, const RunSpec& run, const Tokenizer& tokenizer) {
  HarnessTask task = read_harness_task(file);
  if (task.kind == HarnessTask::Kind::generate_until)
    bad_request(
        "{}: its answers are generated, which a step of training does not; `trireme eval RUN --tasks {}` "
        "scores it",
        file, file);
  std::vector<HarnessRequest> requests = harness_requests(task, run.train.tasks_limit);
  HarnessTexts texts = harness_texts(task, requests, tokenizer, run, run.data.seq_len);
  TrainTask out{.name = task.name, .texts = texts.texts, .score = {}};
  out.score = [task = std::move(task), requests = std::move(requests),
               texts = std::move(texts)](const std::vector<double>& all) {
    TrainTask::Scores scores;
    for (const HarnessScore& s :
         score_likelihoods(task, requests, by_request(task, texts, requests.size(), all)))
      scores.emplace_back(s.metric, s.value);
    return scores;
  };
  return out;
}

}  // namespace

HarnessTexts harness_texts(const HarnessTask& task, const std::vector<HarnessRequest>& requests,
                           const Tokenizer& tokenizer, const RunSpec& run, int64_t context) {
  HarnessTexts out;
  const int32_t start = rolling(task) ? document_start(tokenizer, run) : 0;
  for (size_t i = 0; i < requests.size(); i++) {
    const HarnessRequest& r = requests[i];
    for (size_t c = 0; c < r.continuations.size(); c++) {
      if (rolling(task))
        add_windows(tokenizer, start, r.continuations[c], context, out.texts);
      else
        out.texts.push_back(scored_choice(task, tokenizer, i, r.contexts[c], r.continuations[c], context));
      out.request_of.resize(out.texts.size(), i);
    }
  }
  return out;
}

std::vector<std::vector<double>> by_request(const HarnessTask& task, const HarnessTexts& texts,
                                            size_t requests, const std::vector<double>& all) {
  std::vector<std::vector<double>> out(requests);
  for (size_t i = 0; i < all.size(); i++) out[texts.request_of[i]].push_back(all[i]);
  if (!rolling(task)) return out;
  for (std::vector<double>& windows : out) {
    double sum = 0;
    for (double w : windows) sum += w;
    windows = {sum};
  }
  return out;
}

std::vector<HarnessScore> score_likelihoods(const HarnessTask& task,
                                            const std::vector<HarnessRequest>& requests,
                                            const std::vector<std::vector<double>>& log_likelihoods) {
  if (!rolling(task)) return score_choices(task, requests, log_likelihoods);
  std::vector<double> sums;
  for (const std::vector<double>& one : log_likelihoods) sums.push_back(one[0]);
  return score_rolling(task, requests, sums);
}

std::vector<TrainTask> train_tasks_of(const RunSpec& run) {
  std::vector<TrainTask> out;
  if (run.train.tasks.empty()) return out;
  const Tokenizer tokenizer = tokenizer_of(run);
  for (const std::string& file : run.train.tasks)
    out.push_back(naming_key("train.tasks", file, [&] { return train_task(file, run, tokenizer); }));
  return out;
}

}  // namespace trireme::cli
