#include "checkpoint/parts.h"

#include <gtest/gtest.h>

#include "splits.h"
#include "support.h"

namespace trireme {
namespace {

TEST(Parts, RunsAreTheIntersectionElementByElement) {
  std::mt19937_64 rng(21);
  size_t shared = 0;
  for (int round = 0; round < 20000; round++) {
    Shape global = random_shape(rng, 7);
    Part to = random_part(rng, global), from = random_part(rng, global);
    // By brute force: the global elements of either part, in row-major order of the box.
    std::vector<int64_t> a = elements_of(to, global), b = elements_of(from, global);
    std::map<int64_t, int64_t> index_in_from;
    for (size_t i = 0; i < b.size(); i++) index_in_from[b[i]] = from.range.begin + int64_t(i);
    std::vector<std::pair<int64_t, int64_t>> want, got;
    for (size_t i = 0; i < a.size(); i++)
      if (auto it = index_in_from.find(a[i]); it != index_in_from.end())
        want.push_back({to.range.begin + int64_t(i), it->second});
    for_each_run(to, from, [&](const Overlap& r) {
      EXPECT_GT(r.n, 0);
      for (int64_t i = 0; i < r.n; i++) got.push_back({r.to + i, r.from + i});
    });
    EXPECT_EQ(got, want) << to_string(global) << " round " << round;
    shared += want.size();
  }
  EXPECT_GT(shared, 100000u);
}

TEST(Parts, RunsAreLong) {
  auto runs = [](const Part& to, const Part& from) {
    std::vector<std::array<int64_t, 3>> out;
    for_each_run(to, from, [&](const Overlap& r) { out.push_back({r.to, r.from, r.n}); });
    return out;
  };
  using Runs = std::vector<std::array<int64_t, 3>>;
  // Equal boxes: one run. Whole rows of both: one run. A split of columns: a run a row.
  EXPECT_EQ(runs(whole({5, 4, 3}), whole({5, 4, 3})), (Runs{{0, 0, 60}}));
  EXPECT_EQ(runs({{{0, 0}, {5, 4}}, {3, 18}}, {{{2, 0}, {3, 4}}, {0, 12}}), (Runs{{8, 0, 10}}));
  EXPECT_EQ(runs(whole({3, 4}), {{{0, 2}, {3, 2}}, {0, 6}}), (Runs{{2, 0, 2}, {6, 2, 2}, {10, 4, 2}}));
  // Rows beyond either range are not visited.
  EXPECT_EQ(runs({{{0, 0}, {1000000, 4}}, {4, 8}}, {{{0, 2}, {1000000, 2}}, {0, 2000000}}),
            (Runs{{6, 2, 2}}));
  EXPECT_EQ(runs(whole({}), whole({})), (Runs{{0, 0, 1}}));
  EXPECT_EQ(runs(whole({0, 3}), whole({0, 3})), (Runs{}));
}

TEST(Parts, WhatIsNoPart) {
  EXPECT_EQ(why_not_part(whole({2, 3}), {2, 3}), "");
  EXPECT_EQ(why_not_part({{{1, 0}, {1, 3}}, {3, 3}}, {2, 3}), "");
  EXPECT_NE(why_not_part(whole({2, 3}), {2}), "");
  EXPECT_NE(why_not_part(whole({2, 3}), {2, 2}), "");
  EXPECT_NE(why_not_part({{{1, 1}, {1, 3}}, {0, 3}}, {2, 3}), "");
  EXPECT_NE(why_not_part({{{0, 0}, {1, 3}}, {0, 4}}, {2, 3}), "");
  EXPECT_NE(why_not_part({{{0, 0}, {1, 3}}, {2, 1}}, {2, 3}), "");
  EXPECT_NE(why_not_part({{{0, 0}, {1, 3}}, {-1, 1}}, {2, 3}), "");
  Slice far{{0, 0}, {1, 1}};
  far.offset.dim[0] = INT64_MAX, far.extent.dim[0] = INT64_MAX;
  EXPECT_NE(why_not_part({far, {0, 1}}, {2, 3}), "");
  far.offset.dim[0] = -1;
  EXPECT_NE(why_not_part({far, {0, 1}}, {2, 3}), "");
}

TEST(Cover, FindsTheFirstHole) {
  std::mt19937_64 rng(22);
  for (int round = 0; round < 2000; round++) {
    Cover cover;
    std::vector<bool> filled(40);
    for (size_t i = 0, n = rng() % 8; i < n; i++) {
      Range r{int64_t(rng() % 40), 0};
      r.end = r.begin + int64_t(rng() % size_t(41 - r.begin));
      cover.add(r);
      for (int64_t e = r.begin; e < r.end; e++) filled[size_t(e)] = true;
    }
    Range wanted{int64_t(rng() % 40), 0};
    wanted.end = wanted.begin + int64_t(rng() % size_t(41 - wanted.begin));
    int64_t begin = wanted.begin;
    while (begin < wanted.end && filled[size_t(begin)]) begin++;
    int64_t end = begin;
    while (end < wanted.end && !filled[size_t(end)]) end++;
    Range missing = cover.first_missing(wanted);
    EXPECT_EQ(missing.size(), end - begin);
    if (end > begin) {
      EXPECT_EQ(missing, (Range{begin, end}));
    }
  }
}

}  // namespace
}  // namespace trireme
