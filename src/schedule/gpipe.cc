// GPipe (Huang et al. 2019): all forwards, then all backwards; every stage holds m microbatches, and the
// bubble is (p-1)/m of the ideal time.
//
// Backwards run in ascending order of microbatch, as drawn in Narayanan et al. 2021, figure 3 (Huang's figure
// 2c runs them from the last): neither bubble nor memory change, and weight gradients add up as in every
// other schedule.
#include "schedule/schedule.h"

namespace trireme {

Schedule gpipe(int pp, int microbatches) {
  Schedule s{.stages = pp, .microbatches = microbatches, .ranks = {}};
  for (int r = 0; r < pp; r++) {
    std::vector<Action>& a = s.ranks.emplace_back();
    for (int mb = 0; mb < microbatches; mb++) a.push_back({Act::F, int16_t(r), int16_t(mb)});
    for (int mb = 0; mb < microbatches; mb++) a.push_back({Act::B, int16_t(r), int16_t(mb)});
  }
  return s;
}

}  // namespace trireme
