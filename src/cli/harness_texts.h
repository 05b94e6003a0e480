// The texts whose likelihood scores a task of lm-evaluation-harness: `eval --tasks` and train.tasks.
#pragma once
#include <vector>

#include "spec/run_spec.h"
#include "tasks/harness_score.h"
#include "text/tokenizer.h"
#include "train/scored_batches.h"
#include "train/task_scores.h"

namespace trireme::cli {

struct HarnessTexts {
  std::vector<ScoredText> texts;
  std::vector<size_t> request_of;  // by text
};
// multiple_choice: a text for each choice. loglikelihood_rolling: the harness's windows of each document.
// context: tokens that the model sees; bad_request if a choice alone is longer.
HarnessTexts harness_texts(const HarnessTask&, const std::vector<HarnessRequest>&, const Tokenizer&,
                           const RunSpec&, int64_t context);

struct HarnessPrompts {
  std::vector<std::vector<int32_t>> prompts;  // by request
  int64_t truncated = 0;                      // prompts that lost their beginning
};
// For generate_until. As in the harness, a prompt keeps its last tokens that leave room for an answer
// in the context; bad_request if there is none.
HarnessPrompts harness_prompts(const HarnessTask&, const std::vector<HarnessRequest>&, const Tokenizer&,
                               int64_t context);
std::vector<std::string> stops_of(const HarnessTask&);

// Sums by request, then by choice; a rolling task has one sum per document. all: by text.
std::vector<std::vector<double>> by_request(const HarnessTask&, const HarnessTexts&, size_t requests,
                                            const std::vector<double>& all);
// Scores of the kinds of tasks that harness_texts() takes.
std::vector<HarnessScore> score_likelihoods(const HarnessTask&, const std::vector<HarnessRequest>&,
                                            const std::vector<std::vector<double>>& log_likelihoods);

// The tasks that train.tasks names, ready for the trainer. bad_request naming train.tasks for a file that
// cannot be read.
std::vector<TrainTask> train_tasks_of(const RunSpec&);

}  // namespace trireme::cli
