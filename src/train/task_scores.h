// Tasks that a run scores while it trains (train.tasks), through the runner that trains: no second copy of
// the weights, on all ranks, and no bit of training changed.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "train/scored_batches.h"

namespace trireme {

using TaskScores =
    std::vector<std::pair<std::string, double>>;  // by metric, such as "exact_match,strict-match"

struct LikelihoodTask {
  std::vector<ScoredText> texts;  // of at most data.seq_len scored tokens
  std::function<TaskScores(const std::vector<double>& log_likelihoods)> score;
};

// Its answers are the most likely tokens.
struct AnswerTask {
  using Tokens = std::vector<int32_t>;
  std::vector<Tokens> prompts;  // none empty; of at most data.seq_len - most_tokens tokens
  int64_t most_tokens = 1;      // an answer's
  int64_t vocab = 0;            // the tokenizer's: other ids are not drawn
  int32_t end_of_text = -1;     // ends an answer, and is no part of it
  std::function<bool(const Tokens& answer)> ended;  // asked after each token
  std::function<TaskScores(const std::vector<Tokens>& answers)> score;
};

struct TrainTask {
  std::string name;
  std::variant<LikelihoodTask, AnswerTask> task;
};

// Log-likelihoods of the scored tokens of each text, in nats, in the order given. On all ranks. A longer text
// than data.seq_len loses its beginning. Sums are equal on every layout whose forward pass is. Throws Error
// (run) if one is not finite.
std::vector<double> score_texts(StageRunner&, const RunSpec&, const std::vector<ScoredText>&);

// The answer to each prompt. On all ranks, in every layout: there is no cache, each token costs a forward
// pass over the texts so far. Returns nothing if `leave` is true on a rank; it is asked before each token.
// Throws Error (run) if a logit is not finite.
std::optional<std::vector<AnswerTask::Tokens>> answer_prompts(StageRunner&, const RunSpec&, const AnswerTask&,
                                                              const std::function<bool()>& leave = {});

// Returns nothing if `leave` ended the work.
std::optional<TaskScores> score_task(StageRunner&, const RunSpec&, const TrainTask&,
                                     const std::function<bool()>& leave = {});

}  // namespace trireme
