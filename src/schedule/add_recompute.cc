#include <algorithm>

#include "base/error.h"
#include "schedule/schedule.h"

namespace trireme {

Schedule add_recompute(Schedule s, std::span<const int> stages) {
  const auto wanted = [&](int stage) {
    return stages.empty() || std::find(stages.begin(), stages.end(), stage) != stages.end();
  };
  for (std::vector<Action>& actions : s.ranks) {
    std::vector<Action> out;
    size_t group = 0;  // where the actions issued together with the last one begin
    for (const Action& a : actions) {
      require(a.kind != Act::R && a.kind != Act::RecvB, "add_recompute comes first of the passes, and once");
      if (out.empty() || a.overlap == 0 || out.back().overlap != a.overlap) group = out.size();
      const bool backward = a.kind == Act::B || a.kind == Act::I;
      if (backward && wanted(a.stage))
        out.insert(out.begin() + std::ptrdiff_t(group++), {Act::R, a.stage, a.mb});
      out.push_back(a);
    }
    actions = std::move(out);
  }
  return s;
}

}  // namespace trireme
