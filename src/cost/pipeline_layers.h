// How many blocks a rank of a pipeline has, in closed form.
#pragma once
#include "cost/step_time.h"

namespace trireme {

// Blocks of rank `rank` of StepCase::pp over all of its chunks; of experts and dense blocks alike. by_cost:
// for blocks that cost alike.
double rank_layers(const StepCase&, int64_t rank);
// Those that microbatches in flight are held by: of a V's rank 0 twice the blocks of its way down, where all
// but one of them are.
double held_layers(const StepCase&, int64_t rank);

}  // namespace trireme
