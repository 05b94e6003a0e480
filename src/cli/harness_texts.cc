#include "cli/harness_texts.h"

#include <map>
#include <memory>

#include "cli/prompts.h"
#include "cli/source.h"
#include "generate/text_stream.h"
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

TaskScores by_metric(const std::vector<HarnessScore>& scores) {
  TaskScores out;
  for (const HarnessScore& s : scores) out.emplace_back(s.name(), s.value);
  return out;
}

LikelihoodTask likelihood_task(const HarnessTask& task, const std::vector<HarnessRequest>& requests,
                               const RunSpec& run, const Tokenizer& tokenizer) {
  HarnessTexts texts = harness_texts(task, requests, tokenizer, run, run.data.seq_len);
  LikelihoodTask out{.texts = texts.texts, .score = {}};
  out.score = [task, requests, texts = std::move(texts)](const std::vector<double>& all) {
    return by_metric(score_likelihoods(task, requests, by_request(task, texts, requests.size(), all)));
  };
  return out;
}

AnswerTask answer_task(const HarnessTask& task, const std::vector<HarnessRequest>& requests,
                       const RunSpec& run, const std::shared_ptr<const Tokenizer>& tokenizer) {
  AnswerTask out{.prompts = harness_prompts(task, requests, *tokenizer, run.data.seq_len).prompts,
                 .most_tokens = task.most_tokens,
                 .vocab = std::min<int64_t>(tokenizer->vocab_size(), run.model.vocab),
                 .end_of_text = tokenizer->find_end_of_text().value_or(-1),
                 .ended = {},
                 .score = {}};
  const auto text_of = [tokenizer, stops = stops_of(task)](const AnswerTask::Tokens& answer) {
    TextStream text(stops);
    for (int32_t id : answer) text.push(tokenizer->token(id));
    text.finish();
    return text;
  };
  out.ended = [text_of](const AnswerTask::Tokens& answer) { return text_of(answer).stopped(); };
  out.score = [task, requests, text_of](const std::vector<AnswerTask::Tokens>& answers) {
    std::vector<std::string> texts;
    for (const AnswerTask::Tokens& a : answers) texts.push_back(text_of(a).text());
    return by_metric(score_texts(task, requests, texts));
  };
  return out;
}

TrainTask train_task(const std::string& file, const RunSpec& run,
                     const std::shared_ptr<const Tokenizer>& tokenizer) {
  const HarnessTask task = read_harness_task(file);
  const std::vector<HarnessRequest> requests = harness_requests(task, run.train.tasks_limit);
  if (task.kind == HarnessTask::Kind::generate_until)
    return {task.name, answer_task(task, requests, run, tokenizer)};
  return {task.name, likelihood_task(task, requests, run, *tokenizer)};
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

HarnessPrompts harness_prompts(const HarnessTask& task, const std::vector<HarnessRequest>& requests,
                               const Tokenizer& tokenizer, int64_t context) {
  std::vector<std::string> texts;
  for (const HarnessRequest& r : requests) texts.push_back(r.contexts[0]);
  HarnessPrompts out{.prompts = encode_prompts(tokenizer, texts)};
  const int64_t most = context - task.most_tokens;
  if (most < 1)
    bad_request("{}: answers of {} tokens do not fit into a context of {}", task.file, task.most_tokens,
                context);
  for (std::vector<int32_t>& p : out.prompts)
    if (int64_t(p.size()) > most) {
      p.erase(p.begin(), p.end() - most);
      out.truncated++;
    }
  return out;
}

std::vector<std::string> stops_of(const HarnessTask& task) {
  std::vector<std::string> stops;
  for (const std::string& s : task.until)
    if (!s.empty()) stops.push_back(s);
  return stops;
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
  const auto tokenizer = std::make_shared<const Tokenizer>(tokenizer_of(run));
  std::map<std::string, std::string> file_of;
  for (const std::string& file : run.train.tasks)
    out.push_back(naming_key("train.tasks", file, [&] {
      TrainTask t = train_task(file, run, tokenizer);
      if (const auto [first, added] = file_of.emplace(t.name, file); !added)
        bad_request("task = {:?} is also the name in {}; give each task its own name", t.name, first->second);
      return t;
    }));
  return out;
}

}  // namespace trireme::cli
