// Moments of V schedules against a count of their orders, action by action, of more microbatches.
#include "cost/schedule_held.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "schedule/schedule.h"

namespace trireme {
namespace {

struct NamedOrder {
  const char* name;
  PipelineOrder order;
};
constexpr NamedOrder kVs[] = {{"zb-v", PipelineOrder::zb_v},
                              {"v-half", PipelineOrder::v_half},
                              {"v-min", PipelineOrder::v_min},
                              {"dualpipe-v", PipelineOrder::dualpipe_v}};

// Most microbatches of a chunk at once, forward done and weight gradient not.
int most_in_chunk(const std::vector<Action>& actions, int pp, int chunk) {
  int now = 0, most = 0;
  for (const Action& a : actions) {
    if ((a.stage < pp ? 0 : 1) != chunk) continue;
    now += (a.kind == Act::F) - (a.kind == Act::B || a.kind == Act::W);
    most = std::max(most, now);
  }
  return most;
}

TEST(ScheduleHeld, CountsWhatTheSchedulesHold) {
  for (const NamedOrder& v : kVs)
    for (const int pp : {2, 3, 4, 7, 8})
      for (const int m : {pp, 2 * pp + 1, 9 * pp}) {
        const Schedule s = make_schedule(v.name, pp, 2, m);
        const auto& counted = counted_moments(v.order, pp, m);
        ASSERT_EQ(counted.size(), size_t(pp));
        for (int r = 0; r < pp; r++)
          for (const int chunk : {0, 1}) {
            int most = 0;
            for (const CountedMoment& at : counted[size_t(r)])
              most = std::max(most, at.before[size_t(chunk)] + at.waiting[size_t(chunk)]);
            EXPECT_EQ(most, most_in_chunk(s.ranks[size_t(r)], pp, chunk))
                << v.name << " pp " << pp << ", " << m << " microbatches, rank " << r << " chunk " << chunk;
          }
      }
}

// No moment has at least as much of everything as another one of its kind.
TEST(ScheduleHeld, KeepsNoMomentWithinAnother) {
  for (const NamedOrder& v : kVs)
    for (const std::vector<CountedMoment>& all : counted_moments(v.order, 8, 40))
      for (const CountedMoment& a : all)
        for (const CountedMoment& b : all) {
          if (&a == &b || a.at != b.at || a.chunk != b.chunk) continue;
          EXPECT_TRUE(a.before[0] > b.before[0] || a.before[1] > b.before[1] || a.waiting[0] > b.waiting[0] ||
                      a.waiting[1] > b.waiting[1]);
        }
}

}  // namespace
}  // namespace trireme
