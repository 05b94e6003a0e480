// How long a World's step takes, without replaying what repeats in it. Behind the warm-up every rank issues
// the same pieces for later microbatches; and once each of them begins, meets and ends as much later than
// some microbatches ago, on all ranks, it does so until that part of the program ends: times are maxima and
// sums of earlier ones. So a replay of fewer microbatches says all of the whole step, to the nanosecond.
#pragma once
#include "sim/world.h"

namespace trireme {

struct StepTotals {
  int64_t makespan = 0;
  double bubble = 0;     // bubble_of()
  int64_t pieces = 0;    // that were replayed
  int microbatches = 0;  // of the step that was replayed: the world's, where nothing was found to repeat
};
// As replay_world() and bubble_of() of its rows. Errors: replay_world()'s; of events only those replayed
// count.
StepTotals step_totals(const World&);

}  // namespace trireme
