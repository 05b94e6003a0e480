// Skipped steps and their samples: spikes.jsonl and a line for the user.
#pragma once
#include "runtime/stage_runner.h"
#include "train/batches.h"

namespace trireme {

// A line of spikes.jsonl for a step that train.spikes skipped:
//   {"step": 7, "reason": "outlier", "loss": 9.1, "loss_z": 31.2, "loss_median": 3.2, "grad_norm": .., ..,
//    "action": "skip", "sequences": [{"shard": "data/train", "tokens": [260, 272], "documents": [4, 5],
//    "loss": 10.4}, ...]}
// Sequences come in order of falling loss, those that are not finite first; at most kMostNamed of them.
class SpikeFile {
 public:
  static constexpr size_t kMostNamed = 64;
  // Drops the lines of steps after `done`, which a resume repeats.
  SpikeFile(fs::path, int64_t done);
  // losses: sums of token losses of the step's sequences, in order of the global batch. action: "skip", or
  // what a rollback did. Returns the line for the user.
  std::string write(int64_t step, const StepResult&, std::span<const double> losses, Batches&,
                    int64_t seq_len, const std::string& action);

 private:
  fs::path path_;
};

}  // namespace trireme
