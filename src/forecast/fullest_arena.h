// The arena that decides whether a layout fits.
#pragma once
#include <cstdint>

#include "forecast/rank_bytes.h"
#include "runtime/meta_rank.h"
#include "spec/run_spec.h"

namespace trireme {

struct FullestArena {
  int64_t bytes = 0;
  int pp_rank = 0;
  double more = 0;    // StepMemory::more of that rank
  int64_t ranks = 0;  // pipeline ranks that were booked, because they differ
};
// Books the pipeline ranks on meta. Returns the arena of the rank that leaves the least of its device's
// memory. enough: as largest_arenas(). Requires: the run is resolved.
FullestArena fullest_arena(const RunSpec&, const RankRoom&, int64_t enough = kEndlessArena);

}  // namespace trireme
