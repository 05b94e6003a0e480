// Tasks that a run scores while it trains (train.tasks), through the runner that trains: no second copy of
// the weights, on all ranks, and no bit of training changed.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "train/scored_batches.h"

namespace trireme {

struct TrainTask {
  using Scores = std::vector<std::pair<std::string, double>>;  // by metric
  std::string name;
  std::vector<ScoredText> texts;  // of at most data.seq_len scored tokens
  std::function<Scores(const std::vector<double>& log_likelihoods)> score;
};

// Log-likelihoods of the scored tokens of each text, in nats, in the order given. On all ranks. A longer text
// than data.seq_len loses its beginning. Sums are equal on every layout whose forward pass is. Throws Error
// (run) if one is not finite.
std::vector<double> score_texts(StageRunner&, const RunSpec&, const std::vector<ScoredText>&);

}  // namespace trireme
