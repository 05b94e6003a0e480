// DualPipe (DeepSeek-V3 technical report, figure 5; its eight steps as in DeepSeek's reference): microbatches
// enter at both ends of the pipeline, so every rank has two stages, r and p-1-r, and every stage is on two
// ranks. The first half of the microbatches enters at rank 0, the second at rank p-1.
//
// Bubble (p/2-1)(F&B + B - 3W), where F&B is the time of a forward and a backward issued together and B is
// the whole backward; exactly so at T_F = T_I >= T_W. Activations of p + 1 microbatches, parameters twice.
#include "schedule/dualpipe.h"

#include <algorithm>

namespace trireme {

void write_dualpipe(std::vector<Action>& list, int depth, int depths, Chunk near, Chunk far, int each) {
  RankWriter out(list);
  const int behind = depths - 1 - depth;  // ranks between this one and the turn
  for (int n = 0; n < 2 * behind; n++) out.f(near);
  for (int n = 0; n <= depth; n++) out.f(near), out.f(far);
  for (int n = 0; n < behind; n++) out.i(far), out.w(), out.f(far);
  for (int n = 0; n < each - 2 * depths + depth + 1; n++) {
    if (n == 0 && behind == 0)
      out.f(near), out.b(far);  // not together: the other half waits for the forward
    else
      out.f_and_b(near, far);
    out.f_and_b(far, near);
  }
  for (int n = 0; n < behind; n++) out.b(far), out.f_and_b(far, near);
  // depth + 1 backwards of either chunk, the later half of them split.
  for (int n = 0; n < 2 * (depth + 1); n++) {
    Chunk& c = n % 2 ? near : far;
    n > depth ? out.i(c) : out.b(c);
  }
  for (int n = 0; n < behind; n++) out.w(), out.i(near);
  while (out.w_waits()) out.w();
}

Schedule dualpipe(int pp, int microbatches) {
  Schedule s{.stages = pp, .microbatches = microbatches, .ranks = {}, .copies = 2};
  const int half = (microbatches + 1) / 2;  // of odd numbers the first end has one more
  for (int r = 0; r < pp; r++) {
    Chunk down{.stage = r, .first = 0, .count = half};
    Chunk up{.stage = pp - 1 - r, .first = half, .count = microbatches - half};
    const bool upper = r < pp / 2;
    write_dualpipe(s.ranks.emplace_back(), std::min(r, pp - 1 - r), pp / 2, upper ? down : up,
                   upper ? up : down, std::max(half, pp));
  }
  return s;
}

}  // namespace trireme
