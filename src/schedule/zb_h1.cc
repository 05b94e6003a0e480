// ZB-H1 (Qi et al. 2024, figure 3, top): 1F1B whose weight gradients come later, the later the rank, and fill
// the bubble at the end. With T_W <= T_F, T_I: bubble (p-1)(T_F + T_I - T_W), a third of 1F1B's at equal
// times. Rank r holds (p-r) microbatches before their I and r before their W: no more than 1F1B.
#include "schedule/writer.h"
#include "schedule/zb_h.h"

namespace trireme {

Schedule split_one_f_one_b(int pp, int microbatches, int ahead) {
  Schedule s{.stages = pp, .microbatches = microbatches, .ranks = {}};
  for (int r = 0; r < pp; r++) {
    RankWriter out(s.ranks.emplace_back());
    Chunk c{.stage = r, .count = microbatches};
    for (int n = 0; n < ahead * (pp - 1 - r); n++) out.f(c);
    for (int mb = 0; mb < microbatches; mb++) {
      out.f(c);
      out.i(c);
      if (mb >= ahead * r) out.w();
    }
    while (out.w_waits()) out.w();
  }
  return s;
}

Schedule zb_h1(int pp, int microbatches) {
  return split_one_f_one_b(pp, microbatches, 1);
}

}  // namespace trireme
