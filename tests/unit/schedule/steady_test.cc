// Schedules of many microbatches are those of few with rounds between.
#include "schedule/steady.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

Schedule steady_schedule(std::string_view name, int pp, int microbatches, int zero, bool again) {
  Schedule s = make_schedule(name, pp, default_chunks(name), microbatches);
  if (again) s = add_recompute(std::move(s), {}, true);
  s = add_step(add_transfers(std::move(s)));
  return zero < 0 ? s : add_zero(std::move(s), zero);
}

TEST(Steady, ShortenedIsWhatTheGeneratorMakes) {
  int found = 0;
  for (const std::string_view name :
       {"1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipe-v"})
    for (const int pp : {1, 2, 3, 4, 7})
      for (const int zero : {-1, 0, 2, 3})
        for (const bool again : {false, true}) {
          const Schedule whole = steady_schedule(name, pp, 24 * pp, zero, again);
          const std::optional<SteadyPart> part = steady_part(whole);
          ASSERT_TRUE(part) << name << " of " << pp;
          const int fewer = part->removable(2);
          EXPECT_GE(fewer, 12 * pp) << name << " of " << pp << " zero " << zero;
          EXPECT_EQ(fewer % part->period, 0);
          const Schedule cut = shortened(whole, *part, fewer);
          EXPECT_NO_THROW(validate(cut));
          EXPECT_TRUE(same_actions(cut, steady_schedule(name, pp, 24 * pp - fewer, zero, again)))
              << name << " of " << pp << " zero " << zero;
          found++;
        }
  EXPECT_EQ(found, 8 * 5 * 4 * 2);
}

// All forwards come before any backward: nothing can go from between. Copies number their microbatches
// apart.
TEST(Steady, NoneWhereNothingCanGo) {
  EXPECT_FALSE(steady_part(steady_schedule("gpipe", 4, 64, -1, false)));
  EXPECT_FALSE(steady_part(steady_schedule("dualpipe", 4, 64, -1, false)));
  EXPECT_FALSE(steady_part(steady_schedule("1f1b", 4, 2, -1, false)));
}

TEST(Steady, LivesFromFirstToLast) {
  const Schedule s = one_f_one_b(4, 32);
  const std::optional<SteadyPart> part = steady_part(s);
  ASSERT_TRUE(part);
  EXPECT_EQ(longest_life(s.ranks[0], part->ranks[0]), 8u);  // its F, three of F and B, its B
  EXPECT_EQ(longest_life(s.ranks[3], part->ranks[3]), 2u);
}

}  // namespace
}  // namespace trireme
