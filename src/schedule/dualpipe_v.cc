// DualPipe-V (DeepSeek's DualPipe repository; "cut in half" of Sea AI Lab): DualPipe folded at its middle.
// Ranks have the stages r and 2p-1-r, there is one copy of each, and microbatches enter and leave at rank 0.
// In times of a chunk: bubble (p-1)(F&B + B - 3W), exactly so at T_F = T_I >= T_W; 2p + 1 chunks held, the
// activations of p + 1/2 microbatches.
#include <algorithm>

#include "schedule/dualpipe.h"

namespace trireme {

Schedule dualpipe_v(int pp, int microbatches) {
  Schedule s{.stages = 2 * pp, .microbatches = microbatches, .ranks = {}};
  for (int r = 0; r < pp; r++)
    write_dualpipe(s.ranks.emplace_back(), r, pp, {.stage = r, .count = microbatches},
                   {.stage = 2 * pp - 1 - r, .count = microbatches}, std::max(2 * pp, microbatches));
  return s;
}

}  // namespace trireme
