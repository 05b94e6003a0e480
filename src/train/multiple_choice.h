// Multiple-choice evaluation: which choice does the model hold most likely after the prompt?
#pragma once
#include <functional>

#include "train/choices.h"

namespace trireme {

struct ChoiceScore {
  // Of each choice, nats: sum of its tokens' log-likelihoods given the prompt and the choice's tokens before.
  std::vector<double> log_likelihood;
  int64_t raw = 0;       // the choice of the largest log-likelihood; of equal ones the first
  int64_t per_byte = 0;  // ... of the largest log-likelihood / bytes of the choice
};

// A share of questions answered right; its standard error is that of a mean of n draws, sqrt(p (1 - p) / (n -
// 1)), NaN for one question.
struct Accuracy {
  double mean = 0, standard_error = 0;
};

struct ChoiceResult {
  std::vector<ChoiceScore> scores;  // a question each
  Accuracy raw, per_byte;
  double chance = 0;      // mean of 1 / number of choices: what guessing would reach
  int64_t truncated = 0;  // choices whose prompt lost its beginning because it is longer than the context
};

class ChoiceBatches {
 public:
  // context: tokens that the model sees at once. bad_request where a choice alone is longer.
  ChoiceBatches(const Tokenizer&, std::vector<ChoiceQuestion>, const RunSpec&, int64_t context);

  std::vector<BatchShape> shapes() const { return batches_.shapes(); }  // for book_evaluation
  int64_t count() const { return batches_.count(); }
  const std::vector<ChoiceQuestion>& questions() const { return questions_; }

  // progress: called with the number of choices done after each batch; what it throws ends the work.
  ChoiceResult run(StageRunner&, const std::function<void(int64_t done)>& progress = {}) const;

 private:
  std::vector<ChoiceQuestion> questions_;
  ScoredBatches batches_;
};

}  // namespace trireme
