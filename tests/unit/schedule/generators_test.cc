// Goldens for p = 2 and 3 are written by hand from the figures: GPipe from Narayanan et al. 2021 figure 3,
// 1F1B from its figure 4 (top), each with the p and m at hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "schedule/schedule.h"

namespace trireme {
namespace {

TEST(Gpipe, Goldens) {
  EXPECT_EQ(to_text(gpipe(2, 4)),
            "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3\n"
            "1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3\n");
  EXPECT_EQ(to_text(gpipe(3, 2)),
            "0F0 0F1 0B0 0B1\n"
            "1F0 1F1 1B0 1B1\n"
            "2F0 2F1 2B0 2B1\n");
  EXPECT_EQ(to_text(gpipe(1, 3)), "0F0 0F1 0F2 0B0 0B1 0B2\n");
}

TEST(OneFOneB, Goldens) {
  EXPECT_EQ(to_text(one_f_one_b(2, 4)),
            "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3\n"
            "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3\n");
  EXPECT_EQ(to_text(one_f_one_b(3, 4)),
            "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3\n"
            "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3\n"
            "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3\n");
  // Fewer microbatches than ranks: the first rank never reaches its steady state.
  EXPECT_EQ(to_text(one_f_one_b(3, 1)), "0F0 0B0\n1F0 1B0\n2F0 2B0\n");
  EXPECT_EQ(to_text(one_f_one_b(1, 3)), "0F0 0B0 0F1 0B1 0F2 0B2\n");
}

// Runs a compute-only schedule in time: F takes 1, B takes 2, moving data nothing. Ends of every action by
// its text.
int makespan(const Schedule& s) {
  std::map<std::tuple<Act, int, int>, int> end;
  std::vector<size_t> next(s.ranks.size(), 0);
  std::vector<int> clock(s.ranks.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < s.ranks.size(); r++) {
      for (; next[r] < s.ranks[r].size(); next[r]++, moved = true) {
        const Action a = s.ranks[r][next[r]];
        const bool f = a.kind == Act::F;
        const int from = f ? a.stage - 1 : a.stage + 1;
        int start = clock[r];
        if (from >= 0 && from < s.stages) {
          const auto it = end.find({a.kind, from, a.mb});
          if (it == end.end()) break;
          start = std::max(start, it->second);
        }
        clock[r] = end[{a.kind, a.stage, a.mb}] = start + (f ? 1 : 2);
      }
    }
  }
  return *std::max_element(clock.begin(), clock.end());
}

int most_in_flight(const std::vector<Action>& actions) {
  int now = 0, most = 0;
  for (const Action& a : actions) most = std::max(most, now += a.kind == Act::F ? 1 : -1);
  return most;
}

TEST(Generators, ValidWithThePublishedBubbleAndMemory) {
  for (int p : {1, 2, 3, 4, 7}) {
    for (int m : {1, 2, 3, 6, 8, 13}) {
      const Schedule g = gpipe(p, m), o = one_f_one_b(p, m);
      for (const Schedule& s : {g, o}) {
        EXPECT_TRUE(validate(s).empty());
        EXPECT_TRUE(validate(add_step(s)).empty());
        EXPECT_EQ(makespan(s), 3 * (m + p - 1)) << to_text(s);  // bubble (p-1)/m of the ideal 3m
      }
      for (int r = 0; r < p; r++) {
        EXPECT_EQ(most_in_flight(g.ranks[size_t(r)]), m);
        EXPECT_EQ(most_in_flight(o.ranks[size_t(r)]), std::min(m, p - r));
      }
    }
  }
}

TEST(AddStep, ReducesEachStageAfterItsLastWeightGradient) {
  EXPECT_EQ(to_text(add_step(one_f_one_b(2, 2))),
            "0F0 0F1 0B0 0B1 0ReduceGrad 0Step\n"
            "1F0 1B0 1F1 1B1 1ReduceGrad 1Step\n");
  // Two stages on a rank, backwards split.
  EXPECT_EQ(to_text(add_step(parse_schedule("0F0 1F0 1I0 1W0 0I0 0W0"))),
            "0F0 1F0 1I0 1W0 1ReduceGrad 0I0 0W0 0ReduceGrad 0Step\n");
  EXPECT_THROW(add_step(add_step(gpipe(1, 1))), Error);
}

std::string refusal(std::string_view name, int pp, int chunks, int m) {
  try {
    make_schedule(name, pp, chunks, m);
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    return e.what();
  }
  return "no error";
}

TEST(MakeSchedule, ByName) {
  EXPECT_EQ(make_schedule("gpipe", 3, 1, 5), gpipe(3, 5));
  EXPECT_EQ(make_schedule("1f1b", 3, 1, 5), one_f_one_b(3, 5));
  EXPECT_EQ(
      refusal("1F1B", 2, 1, 4),
      "layout.schedule = \"1F1B\" is unknown; schedules are gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, "
      "v-half, v-min, dualpipe, dualpipe-v");
  EXPECT_EQ(refusal("1f1b", 2, 3, 4),
            "layout.chunks = 3: layout.schedule = \"1f1b\" takes chunks = 1 (one model chunk a rank)");
  EXPECT_EQ(refusal("1f1b", 0, 1, 4), "layout.pp = 0 must be from 1 to 32767");
  EXPECT_EQ(refusal("1f1b", 1, 1, 40000),
            "batch: 40000 microbatches a step; global / (dp * micro) must be from 1 to 32767");
}

}  // namespace
}  // namespace trireme
