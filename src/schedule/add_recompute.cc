#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include "base/error.h"
#include "schedule/schedule.h"

namespace trireme {
namespace {

// Two ids that no action has: groups that follow each other take turns. Those behind the last one, or where a
// file took that, in its gaps.
std::array<uint16_t, 2> free_ids(const std::vector<Action>& actions) {
  constexpr int kMost = std::numeric_limits<uint16_t>::max();
  std::set<int> used;
  for (const Action& a : actions) used.insert(a.overlap);
  std::array<uint16_t, 2> ids{};
  size_t found = 0;
  const int last = used.empty() ? 0 : *used.rbegin();
  for (int id = last <= kMost - 2 ? last + 1 : 1; id <= kMost && found < 2; id++)
    if (!used.contains(id)) ids[found++] = uint16_t(id);
  if (found < 2)
    bad_request("layout.recompute: a rank of the schedule has all of the {} overlap ids; two must be left",
                kMost);
  return ids;
}

}  // namespace

Schedule add_recompute(Schedule s, std::span<const int> stages, bool together) {
  const auto wanted = [&](int stage) {
    return stages.empty() || std::find(stages.begin(), stages.end(), stage) != stages.end();
  };
  for (std::vector<Action>& actions : s.ranks) {
    const std::array<uint16_t, 2> ids = free_ids(actions);
    std::vector<Action> out;
    size_t group = 0, groups = 0;  // where the actions issued together with the last one begin; made here
    for (const Action& a : actions) {
      require(a.kind != Act::R && a.kind != Act::RecvB, "add_recompute comes first of the passes, and once");
      if (out.empty() || a.overlap == 0 || out.back().overlap != a.overlap) group = out.size();
      out.push_back(a);
      if ((a.kind != Act::B && a.kind != Act::I) || !wanted(a.stage)) continue;
      Action again{Act::R, a.stage, a.mb};
      if (together) {
        if (a.overlap == 0) out.back().overlap = ids[groups++ % 2];
        again.overlap = out.back().overlap;
      }
      out.insert(out.begin() + std::ptrdiff_t(group++), again);
    }
    actions = std::move(out);
  }
  return s;
}

}  // namespace trireme
