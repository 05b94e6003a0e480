// ZB-V (Qi et al. 2024, section 6, figure 8): two chunks a rank in a V, so that a microbatch's forward ends
// and its backward begins on the rank where it entered: rank 0. No bubble at T_F = T_I = T_W; every rank
// holds 2p chunks, the activations of p microbatches: as much as 1F1B's first.
//
// The sequence is written for at least 2p - 1 microbatches (writer.h).
#include <algorithm>

#include "schedule/writer.h"

namespace trireme {
namespace {

void f_i_w(RankWriter& out, Chunk& c) {
  out.f(c), out.i(c), out.w(c);
}

}  // namespace

Schedule zb_v(int pp, int microbatches) {
  Schedule s{.stages = 2 * pp, .microbatches = microbatches, .ranks = {}};
  const int all = std::max(2 * pp - 1, microbatches);
  for (int r = 0; r < pp; r++) {
    RankWriter out(s.ranks.emplace_back());
    Chunk down{.stage = r, .count = microbatches}, up{.stage = 2 * pp - 1 - r, .count = microbatches};
    // 2p - 1 forwards, until the first microbatch is back on its way up.
    for (int n = 0; n < 2 * (pp - r) - 1; n++) out.f(down);
    for (int n = 0; n < r; n++) out.f(up), out.f(down);
    for (int n = 0; n < pp - r; n++) f_i_w(out, up);
    // Steady: F, I and W of either chunk in turn.
    while (up.forwards < all) {
      if (down.forwards < all) out.f(down);
      out.i(down), out.w(down);
      f_i_w(out, up);
    }
    // What is left: input gradients first, others wait for them; weight gradients fill.
    for (int n = 0; n < r; n++) out.i(down), out.i(up);
    for (int n = 0; n < pp - r; n++) out.i(down), out.w(down);
    while (up.weights < all) out.w(up);
    while (down.weights < all) out.w(down);
  }
  return s;
}

}  // namespace trireme
