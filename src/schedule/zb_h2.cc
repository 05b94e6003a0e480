// ZB-H2 (Qi et al. 2024, figure 3, bottom): twice as many forwards ahead as ZB-H1 fill the bubble before the
// first backward, and weight gradients that at the end. With T_W <= T_F, T_I: bubble (p-1)(T_F + T_I - 2
// T_W), none at equal times. Rank r holds 2(p-r)-1 microbatches before their I and 2r before their W.
#include "schedule/zb_h.h"

namespace trireme {

Schedule zb_h2(int pp, int microbatches) {
  return split_one_f_one_b(pp, microbatches, 2);
}

}  // namespace trireme
