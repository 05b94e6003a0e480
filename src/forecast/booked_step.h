// A step of a run that can be booked here: the tapes that its ranks will issue, op by op and byte by byte,
// priced for the cluster (measure/price.h) and replayed, disturbed or not.
#pragma once
#include <functional>
#include <vector>

#include "measure/price.h"
#include "sim/world_report.h"

namespace trireme {

inline constexpr int64_t kMostBookedRanks = 64;  // each is recorded on meta

struct BookedStep {
  std::vector<Tape> tapes;  // by rank
  std::vector<std::vector<Price>> prices;
  std::vector<RankTape> ranks;
  Replay replay;
  // A row for the ranks of a pipeline rank whose timelines are equal; class_of: by rank, its row.
  std::vector<StepRow> rows;
  std::vector<int> class_of;
  int64_t pieces = 0;
  double seconds = 0;  // of the replay
};
// Errors (request): more ranks than kMostBookedRanks, ranks and nodes that the world does not have.
//
// of_bound: every price is multiplied by it.
// progress: told how many ranks are recorded, which takes nearly all of the time.
using BookingProgress = std::function<void(int64_t done, int64_t all)>;
BookedStep booked_step(const RunSpec&, const Schedule&, const ClusterSpec&, int threads, const Disturbance&,
                       const BookingProgress& progress = {}, double of_bound = 1);

// What the ledger holds when each piece of compute begins.
std::vector<MemoryPoint> memory_of(const RankTape&, const RankReplay&);

}  // namespace trireme
