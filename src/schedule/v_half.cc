// V-Half (arXiv 2405.15362, figure 4b): half the activations of 1F1B, p/2 + O(1) microbatches on every rank,
// with a bubble of about half of 1F1B's.
#include "schedule/v_pattern.h"

namespace trireme {

Schedule v_half(int pp, int microbatches) {
  const int apart = pp % 2 == 0 ? 3 : 0;  // keeps passes of different microbatches out of one slot
  BuildingBlock block;
  for (int r = 0; r < pp; r++)
    block.push_back({2 * r, 3 * pp - r - 2, 3 * pp + apart + 2 * r - 1, 6 * pp + apart - r - 2});
  return repeat_block(block, microbatches);
}

}  // namespace trireme
