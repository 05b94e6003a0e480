#include <algorithm>
#include <set>

#include "base/error.h"
#include "schedule/schedule.h"

namespace trireme {

Schedule add_step(Schedule s) {
  for (std::vector<Action>& actions : s.ranks) {
    std::vector<Action>
        backwards;  // the rank from its end, so that the first weight gradient met is a stage's last
    std::set<int16_t> stages;
    for (auto a = actions.rbegin(); a != actions.rend(); ++a) {
      require(a->kind != Act::Step && a->kind != Act::ReduceGrad,
              "add_step on a schedule that has its steps already");
      if ((a->kind == Act::W || a->kind == Act::B) && stages.insert(a->stage).second) {
        backwards.push_back({Act::ReduceGrad, a->stage});
      }
      backwards.push_back(*a);
    }
    require(!stages.empty(), "add_step on a rank without backwards");
    actions.assign(backwards.rbegin(), backwards.rend());
    actions.push_back({Act::Step, *stages.begin()});
  }
  return s;
}

}  // namespace trireme
