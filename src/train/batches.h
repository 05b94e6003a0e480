// Between data and the runner: batches of a run, windows of an evaluation.
#pragma once
#include <optional>

#include "data/loader.h"
#include "runtime/stage_runner.h"

namespace trireme {

class Batches {
 public:
  // Opens data.train, and data.valid where it exists; every id is checked against the vocabulary.
  explicit Batches(const RunSpec&);
  FillBatch training() const;  // this object outlives it
  int64_t targets_per_step() const { return loader_.targets_per_step(); }
  bool has_valid() const { return has_valid_; }

 private:
  DataLoader loader_;
  bool has_valid_ = false;
};

// Sequential windows of seq_len tokens, a last partial one dropped.
class EvalWindows {
 public:
  EvalWindows(const RunSpec&, const fs::path& shard);
  int64_t count() const { return loader_.samples(); }
  FillBatch from(int64_t first) const;  // windows first, first + 1, ...; this object outlives it

 private:
  DataLoader loader_;
  int64_t seq_;
};

bool shard_exists(const fs::path& name);

}  // namespace trireme
