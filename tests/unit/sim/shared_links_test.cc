// Fair shares of links by hand, and against a clock that ticks.
#include "sim/shared_links.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace trireme {
namespace {

struct Given {
  int64_t at, work;
  std::vector<uint32_t> links;
};
std::vector<int64_t> ends_of(const std::vector<Given>& given, size_t links) {
  SharedLinks s(links);
  for (const Given& g : given) s.begin(g.at, g.work, g.links);
  std::vector<int64_t> ends(given.size(), -1);
  while (const auto e = s.next()) ends[e->transfer] = e->at;
  return ends;
}
using Ends = std::vector<int64_t>;

TEST(SharedLinks, TwoOnALinkTakeTwiceAsLongWhileTheyAreTwo) {
  EXPECT_EQ(ends_of({{0, 10, {0}}, {4, 6, {0}}}, 1), (Ends{16, 16}));    // 6 left of each at 4
  EXPECT_EQ(ends_of({{0, 10, {0}}, {4, 20, {0}}}, 1), (Ends{16, 30}));   // 14 left at 16, alone then
  EXPECT_EQ(ends_of({{0, 10, {0}}, {10, 20, {0}}}, 1), (Ends{10, 30}));  // one behind the other
  EXPECT_EQ(ends_of({{0, 10, {0}}, {3, 5, {1}}}, 2), (Ends{10, 8}));     // links of their own
  EXPECT_EQ(ends_of({{0, 9, {0}}, {0, 9, {0}}, {0, 3, {0}}}, 1), (Ends{21, 21, 9}));
  EXPECT_EQ(ends_of({{0, 3, {0}}, {0, 1, {0}}, {1, 1, {0}}}, 1), (Ends{6, 3, 4}));  // 2.5, 3.7 and 5.3
}

// A transfer over two links goes at the pace of the fuller one, and takes its share of both.
TEST(SharedLinks, TheFullestLinkSetsThePace) {
  EXPECT_EQ(ends_of({{0, 10, {0, 1}}, {0, 20, {1}}, {0, 30, {1}}, {0, 5, {0}}}, 2), (Ends{30, 50, 60, 10}));
}

// A tick at a time: as many parts of 840 as each has of its fullest link. To the tick, ends being rounded up
// there too.
TEST(SharedLinks, IsTheClocks) {
  std::mt19937 random(5);
  for (int n = 0; n < 200; n++) {
    std::vector<Given> given;
    std::map<uint32_t, int> users;
    for (int k = 0; k < 12; k++) {
      Given g{int64_t(random() % 60), 1 + int64_t(random() % 40), {}};
      for (uint32_t link = 0; link < 4; link++)
        if ((random() % 3 == 0 || (link == 3 && g.links.empty())) && users[link] < 8)
          g.links.push_back(link), users[link]++;
      if (!g.links.empty()) given.push_back(g);
    }
    std::vector<int64_t> left, ends(given.size(), -1);
    for (const Given& g : given) left.push_back(g.work * 840);
    for (int64_t now = 0; std::count(ends.begin(), ends.end(), -1) > 0; now++) {
      std::map<uint32_t, int64_t> on;
      const auto active = [&](size_t i) { return given[i].at <= now && ends[i] < 0; };
      for (size_t i = 0; i < given.size(); i++)
        for (uint32_t link : given[i].links) on[link] += active(i);
      for (size_t i = 0; i < given.size(); i++) {
        if (!active(i)) continue;
        int64_t most = 1;
        for (uint32_t link : given[i].links) most = std::max(most, on[link]);
        left[i] -= 840 / most;
      }
      for (size_t i = 0; i < given.size(); i++)
        if (active(i) && left[i] <= 0) ends[i] = now + 1;
    }
    EXPECT_EQ(ends_of(given, 4), ends) << n;
  }
}

}  // namespace
}  // namespace trireme
