// V-Min (arXiv 2405.15362, figure 4a): the least activations that a V can do with, p/3 + O(1) microbatches on
// every rank, with a bubble of about two thirds of 1F1B's.
#include "schedule/v_pattern.h"

namespace trireme {

Schedule v_min(int pp, int microbatches) {
  const int apart = pp % 3 == 0 ? 2 : 0;  // keeps passes of different microbatches out of one slot
  BuildingBlock block;
  for (int r = 0; r < pp; r++)
    block.push_back({r, 2 * pp - r - 1, 2 * pp + apart + r, 4 * pp + apart - r - 1});
  return repeat_block(block, microbatches);
}

}  // namespace trireme
