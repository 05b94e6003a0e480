// Small runs of several ranks.
#pragma once
#include "tiny_run.h"

namespace trireme::test {

struct RanksLayout {
  int64_t dp = 1, zero = 0, group = 0, micro = 2, tp = 1, cp = 1, pp = 1;
  std::string placement = "zigzag", method = "ring";  // of cp
  std::string schedule = "1f1b";
  int64_t chunks = 1;  // of each pipeline rank
};

// tiny_run, divided so; its model has heads and a feed-forward that no degree divides evenly.
RunSpec ranks_run(const fs::path& folder, const RanksLayout&, int64_t steps = 8, const char* compute = "f32");

// outcome_of without the bytes in metrics, which differ between layouts: numbers alone.
Outcome numbers_of(const fs::path& run_dir);

}  // namespace trireme::test
