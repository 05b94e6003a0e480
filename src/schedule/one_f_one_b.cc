// 1F1B (PipeDream-flush; Narayanan et al. 2021, figure 4, top): rank r runs p-1-r forwards ahead, then
// alternates one forward with one backward, then drains. Bubble as GPipe's; stage r holds min(m, p-r)
// microbatches instead of m.
#include <algorithm>

#include "schedule/schedule.h"

namespace trireme {

Schedule one_f_one_b(int pp, int microbatches) {
  Schedule s{.stages = pp, .microbatches = microbatches, .ranks = {}};
  for (int r = 0; r < pp; r++) {
    std::vector<Action>& a = s.ranks.emplace_back();
    const int ahead = std::min(microbatches, pp - 1 - r);
    for (int mb = 0; mb < ahead; mb++) a.push_back({Act::F, int16_t(r), int16_t(mb)});
    for (int mb = 0; mb < microbatches; mb++) {
      if (mb + ahead < microbatches) a.push_back({Act::F, int16_t(r), int16_t(mb + ahead)});
      a.push_back({Act::B, int16_t(r), int16_t(mb)});
    }
  }
  return s;
}

}  // namespace trireme
