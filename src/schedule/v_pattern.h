// V schedules with controllable memory (Qi et al. 2024b, "Pipeline Parallelism with Controllable Memory",
// arXiv 2405.15362): a building block, four passes of one microbatch on each rank, is repeated every six time
// slots; its passes' distances set how long activations live, and so how many are held.
#pragma once
#include <array>
#include <vector>

#include "schedule/schedule.h"

namespace trireme {

// Of each rank, the slots of a microbatch's passes in order: forward of stage r, forward of stage 2p-1-r,
// input gradient of stage 2p-1-r, of stage r. No two of a rank may be congruent modulo 6.
using BuildingBlock = std::vector<std::array<int, 4>>;

// The block repeated, then as in section 4.2: passes of the warm-up and the end are moved to the earliest
// free slot that does not raise the peak of memory, empty slots are closed, and weight gradients fill what is
// free.
Schedule repeat_block(const BuildingBlock&, int microbatches);

}  // namespace trireme
