// Closed forms of collectives against numbers worked by hand, their limits, and each other.
#include "cost/collective_time.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace trireme {
namespace {

using Kind = CollectiveKind;
using Way = CollectiveWay;

constexpr Kind kKinds[] = {Kind::all_reduce, Kind::all_gather, Kind::reduce_scatter,
                           Kind::all_to_all, Kind::broadcast,  Kind::p2p};

// 8 devices a node at 100 GB/s and 1 us a round; 4 nodes a rack, of which each has 400 GB/s (a device 50)
// and 5 us; 2 racks, where a node has 80 GB/s (a device 10) and 20 us.
ClusterSpec three_levels() {
  ClusterSpec c;
  c.nodes = 8, c.devices_per_node = 8;
  c.intra_node = {.latency = 1e-6, .bandwidth = 100e9};
  TierSpec rack{.name = "rack", .size = 4, .link = {.latency = 5e-6, .bandwidth = 400e9}};
  TierSpec pod{.name = "pod", .size = 2, .link = {.latency = 20e-6, .bandwidth = 80e9}};
  c.tiers = {rack, pod};
  return c;
}
// A torus of single devices, 50 GB/s a cable and 1 us a hop.
ClusterSpec torus(Numbers dims) {
  ClusterSpec c;
  TierSpec t{.kind = "torus", .dims = dims, .link = {.latency = 1e-6, .bandwidth = 50e9}};
  for (double d : dims) t.size *= int64_t(d);
  c.nodes = t.size, c.tiers = {t};
  return c;
}
double seconds(Kind k, Way w, double bytes, std::vector<int64_t> counts,
               const ClusterSpec& c = three_levels()) {
  const std::optional<double> s = collective_seconds(k, w, bytes, {.counts = std::move(counts)}, c);
  EXPECT_TRUE(s.has_value()) << name_of(k) << " by " << name_of(w);
  return s.value_or(NAN);
}

TEST(CollectiveTime, OfOneNode) {  // 8 GB over 8 ranks, 100 GB/s
  EXPECT_NEAR(seconds(Kind::all_reduce, Way::ring, 8e9, {8}), 14e-6 + 0.14, 1e-12);  // 2 * 7 / 8 * 80 ms
  EXPECT_NEAR(seconds(Kind::all_gather, Way::ring, 8e9, {8}), 7e-6 + 0.07, 1e-12);
  EXPECT_NEAR(seconds(Kind::reduce_scatter, Way::halving, 8e9, {8}), 3e-6 + 0.07, 1e-12);
  EXPECT_NEAR(seconds(Kind::all_reduce, Way::halving, 8e9, {8}), 6e-6 + 0.14, 1e-12);
  EXPECT_NEAR(seconds(Kind::all_reduce, Way::halving, 6e9, {6}), 6e-6 + 0.1, 1e-12);  // log2 6, rounded up
  EXPECT_NEAR(seconds(Kind::all_reduce, Way::tree, 8e9, {8}), 6e-6 + 0.16, 1e-12);    // 2 N
  EXPECT_NEAR(seconds(Kind::all_to_all, Way::direct, 8e9, {8}), 1e-6 + 0.07, 1e-12);
  EXPECT_NEAR(seconds(Kind::broadcast, Way::ring, 8e9, {8}), 7e-6 + 0.08, 1e-12);
  EXPECT_NEAR(seconds(Kind::broadcast, Way::tree, 8e9, {8}), 3e-6 + 0.08, 1e-12);
  EXPECT_NEAR(seconds(Kind::p2p, Way::direct, 8e9, {2}), 1e-6 + 0.08, 1e-12);
}

TEST(CollectiveTime, OfSeveralLevels) {
  // 2 nodes x 8: of 15 hops 14 stay inside; the ring is as fast as the node's 100 GB/s.
  EXPECT_NEAR(seconds(Kind::all_reduce, Way::ring, 16e9, {8, 2}), 2 * (14e-6 + 5e-6) + 2 * 0.15, 1e-12);
  // One rank a node leaves 50 GB/s each, for the others of the node do the same.
  EXPECT_NEAR(seconds(Kind::all_reduce, Way::ring, 4e9, {1, 4}), 6 * 5e-6 + 2 * 0.06, 1e-12);
  EXPECT_NEAR(
      *collective_seconds(Kind::all_reduce, Way::ring, 4e9, {.counts = {1, 4}, .sharing = 1}, three_levels()),
      6 * 5e-6 + 2 * 0.0075, 1e-12);
  // reduce_scatter in the node, all_reduce of an eighth across 4 nodes, all_gather: one after another.
  EXPECT_NEAR(seconds(Kind::all_reduce, Way::hierarchical, 8e9, {8, 4}),
              2 * (3 * 1e-6 + 2 * 5e-6) + 2 * (7. / 8 * 0.08 + 3. / 4 * 0.02), 1e-12);
  EXPECT_NEAR(seconds(Kind::all_gather, Way::hierarchical, 8e9, {8, 4, 2}),
              3 * 1e-6 + 2 * 5e-6 + 20e-6 + 7. / 8 * 0.08 + 3. / 4 * 0.02 + 1. / 2 * 0.25e9 / 10e9, 1e-12);
  // A tree: the node's part and the trees' at the same time, 2 x 1 GB a rank at 10 GB/s over both racks.
  EXPECT_NEAR(seconds(Kind::all_reduce, Way::tree, 8e9, {8, 4, 2}), 2 * (3e-6 + 10e-6 + 20e-6) + 0.2, 1e-12);
  EXPECT_NEAR(seconds(Kind::all_reduce, Way::tree, 8e9, {8, 2}), 2 * (3e-6 + 5e-6) + 0.14, 1e-12);
  // Two nodes exchange N bytes, more than two pass 2 N.
  EXPECT_NEAR(seconds(Kind::all_reduce, Way::tree, 4e9, {1, 2}), 2 * 5e-6 + 0.08, 1e-12);
  EXPECT_NEAR(seconds(Kind::all_reduce, Way::tree, 4e9, {1, 3}), 4 * 5e-6 + 0.16, 1e-12);
  ClusterSpec half = three_levels();
  half.tiers[0].link.efficiency = 0.5, half.intra_node.efficiency = 0.8;
  EXPECT_NEAR(seconds(Kind::all_reduce, Way::tree, 4e9, {1, 2}, half), 2 * 5e-6 + 0.16, 1e-12);
  EXPECT_NEAR(seconds(Kind::all_gather, Way::ring, 8e9, {8}, half), 7e-6 + 0.0875, 1e-12);
  // Of 16 peers' pieces 8 leave the node, at 50 GB/s; 7 stay, at 100.
  EXPECT_NEAR(seconds(Kind::all_to_all, Way::direct, 16e9, {8, 2}), 5e-6 + 8. / 50, 1e-12);
  EXPECT_NEAR(seconds(Kind::p2p, Way::direct, 5e9, {1, 1, 2}), 20e-6 + 0.5, 1e-12);
  // A broadcast by scatter and all_gather: twice an all_gather.
  EXPECT_NEAR(seconds(Kind::broadcast, Way::hierarchical, 8e9, {8, 4}),
              2 * (3e-6 + 2 * 5e-6 + 7. / 8 * 0.08 + 3. / 4 * 0.02), 1e-12);
  // Each of seven peers costs its message.
  ClusterSpec chatty = three_levels();
  chatty.intra_node.message = 2e-6;
  EXPECT_NEAR(seconds(Kind::all_to_all, Way::direct, 8e9, {8}, chatty), 1e-6 + 7 * 2e-6 + 0.07, 1e-12);
}

TEST(CollectiveTime, InSwitch) {
  ClusterSpec c = three_levels();
  EXPECT_FALSE(collective_seconds(Kind::all_reduce, Way::in_switch, 1, {.counts = {8}}, c));
  c.intra_node.reduce_bandwidth = 90e9;
  // 9/8 of the bytes at 90 GB/s, in two rounds; all_gather hands each device everything.
  EXPECT_NEAR(seconds(Kind::all_reduce, Way::in_switch, 8e9, {8}, c), 2e-6 + 0.1, 1e-12);
  EXPECT_NEAR(seconds(Kind::all_gather, Way::in_switch, 9e9, {8}, c), 1e-6 + 0.1, 1e-12);
  EXPECT_NEAR(seconds(Kind::all_reduce, Way::in_switch, 8e9, {8, 4}, c), 2e-6 + 2 * 2 * 5e-6 + 0.1, 1e-12);
  EXPECT_FALSE(collective_seconds(Kind::all_gather, Way::in_switch, 1, {.counts = {8, 2}}, c));
  // Switches of the rack: a GB a rank once, up and down at the same time, at 8 GB/s.
  c.tiers[0].link.reduce_bandwidth = 64e9;
  EXPECT_NEAR(seconds(Kind::all_reduce, Way::in_switch, 8e9, {8, 4}, c), 2e-6 + 2 * 5e-6 + 0.125, 1e-12);
  // In-switch has the same bytes as a ring of 3, and fewer beyond.
  c.intra_node.reduce_bandwidth = 100e9;
  EXPECT_NEAR(seconds(Kind::all_reduce, Way::in_switch, 3e12, {3}, c),
              seconds(Kind::all_reduce, Way::ring, 3e12, {3}, c), 1e-5);
}

TEST(CollectiveTime, OnATorus) {
  // A closed ring of 4: both ways round, 100 GB/s, 2 hops. Of 4 x 4 four cables.
  EXPECT_NEAR(seconds(Kind::all_gather, Way::torus, 4e9, {1, 4}, torus({4})), 2e-6 + 0.03, 1e-12);
  EXPECT_NEAR(seconds(Kind::all_reduce, Way::torus, 16e9, {1, 16}, torus({4, 4})), 2 * (4e-6 + 15. / 200),
              1e-12);
  // Half a side is a line: one cable a device at its ends, 3 hops.
  EXPECT_NEAR(seconds(Kind::all_gather, Way::torus, 4e9, {1, 4}, torus({2, 8})), 3e-6 + 0.06, 1e-12);
  // all_to_all: a quarter of an all_gather of all devices' bytes (here N each, so 4 N / 100 GB/s / 4).
  EXPECT_NEAR(seconds(Kind::all_to_all, Way::torus, 4e9, {1, 4}, torus({4})), 2e-6 + 0.04, 1e-12);
  EXPECT_NEAR(seconds(Kind::all_to_all, Way::torus, 4e9, {1, 4}, torus({8})), 3e-6 + 0.08, 1e-12);
  // What fits no box is a line.
  EXPECT_NEAR(seconds(Kind::all_gather, Way::torus, 6e9, {1, 6}, torus({4, 4})), 5e-6 + 0.1, 1e-12);
  EXPECT_EQ(collective_time(Kind::all_reduce, 1e9, {.counts = {1, 16}}, torus({4, 4})).way, Way::torus);
  for (const Way w : {Way::ring, Way::tree, Way::halving, Way::hierarchical, Way::in_switch})
    EXPECT_FALSE(collective_seconds(Kind::all_reduce, w, 1, {.counts = {1, 16}}, torus({4, 4})));
}

TEST(CollectiveTime, Limits) {
  ClusterSpec c = three_levels();
  c.launch = 3e-6, c.intra_node.ramp = 2e-6, c.intra_node.reduce_bandwidth = 5e10;
  for (const Kind k : kKinds) {
    EXPECT_EQ(collective_time(k, 1e9, {.counts = {1}}, c).seconds, 0) << name_of(k);
    EXPECT_EQ(collective_time(k, 1e9, {.counts = {2}}, ClusterSpec()).seconds, 0) << "no link is known";
    // Nothing to move: rounds alone, and the launch of all but a lone message.
    EXPECT_NEAR(collective_time(k, 0, {.counts = {2}}, c).seconds,
                k == Kind::p2p ? 1e-6 : 3e-6 + (k == Kind::all_reduce ? 2e-6 : 1e-6), 1e-15);
  }
  // Two ranks: ring, halving and tree move N each way in two rounds.
  for (const Way w : {Way::ring, Way::halving, Way::tree})
    EXPECT_NEAR(seconds(Kind::all_reduce, w, 1e9, {2}, three_levels()), 2e-6 + 0.01, 1e-12) << name_of(w);
  // No way is faster than its bytes at full bandwidth, nor slower with fewer of them; a call costs at least
  // its rounds.
  for (const Kind k : kKinds)
    for (const Way w : kCollectiveWays)
      for (const std::vector<int64_t>& counts : {std::vector<int64_t>{5}, {8, 3}, {1, 4, 2}, {7, 4, 2}}) {
        double last = 0;
        for (double bytes = 0; bytes < 1e12; bytes = bytes * 3.7 + 1) {
          const std::optional<double> s = collective_seconds(k, w, bytes, {.counts = counts}, c);
          if (!s) continue;
          EXPECT_GE(*s, last);
          EXPECT_GE(*s, k == Kind::p2p ? 1e-6 : 3e-6);
          if (w != Way::in_switch) {
            EXPECT_GE(*s, 0.5 * bytes / 100e9) << name_of(k) << " " << name_of(w);
          }
          last = *s;
        }
      }
}

TEST(CollectiveTime, TheRampMakesBandwidthGrowWithSize) {
  ClusterSpec c = three_levels();
  c.intra_node.ramp = 4e-6;
  // T = 10 us of bytes: 2 sqrt(4 us * 10 us) more.
  EXPECT_NEAR(seconds(Kind::all_gather, Way::ring, 8. / 7 * 1e6, {8}, c),
              7e-6 + 10e-6 + 2 * std::sqrt(40e-12), 1e-15);
  // Pieces and pipe: the least over the number of pieces k of (k + d)(a + T / k), with d a = 4 us, a small.
  const double a = 1e-9, d = 4000, t = 10e-6;
  double least = 1;
  for (int k = 1; k < 200000; k += 7) least = std::min(least, (k + d) * (a + t / k));
  EXPECT_NEAR(least - d * a, t + 2 * std::sqrt(d * a * t), 1e-10);
}

TEST(CollectiveTime, TakesTheFastest) {
  const ClusterSpec c = three_levels();
  const auto way = [&](Kind k, double bytes, std::vector<int64_t> counts) {
    return collective_time(k, bytes, {.counts = std::move(counts)}, c).way;
  };
  EXPECT_EQ(way(Kind::all_reduce, 8, {8}), Way::tree);    // rounds
  EXPECT_EQ(way(Kind::all_reduce, 8e9, {8}), Way::ring);  // bytes
  EXPECT_EQ(way(Kind::all_to_all, 8e9, {8}), Way::direct);
  EXPECT_EQ(way(Kind::p2p, 8e9, {1, 2}), Way::direct);
  EXPECT_NEAR(bus_bandwidth(Kind::all_reduce, 8e9, 8, 0.14), 100e9, 1);
  EXPECT_NEAR(bus_bandwidth(Kind::all_to_all, 8e9, 8, 0.07), 100e9, 1);
  EXPECT_NEAR(bus_bandwidth(Kind::p2p, 8e9, 2, 0.08), 100e9, 1);
  EXPECT_EQ(bus_bandwidth(Kind::p2p, 8e9, 2, 0), 0);
}

TEST(CollectiveTime, PlacesGroups) {
  const ClusterSpec c = three_levels();
  const auto counts = [&](int64_t ranks, int64_t stride) { return place(c, ranks, stride).counts; };
  using Counts = std::vector<int64_t>;
  EXPECT_EQ(counts(8, 1), (Counts{8, 1, 1}));
  EXPECT_EQ(counts(64, 1), (Counts{8, 4, 2}));
  EXPECT_EQ(counts(8, 8), (Counts{1, 4, 2}));
  EXPECT_EQ(counts(4, 2), (Counts{4, 1, 1}));
  EXPECT_EQ(counts(4, 4), (Counts{2, 2, 1}));
  EXPECT_EQ(counts(2, 32), (Counts{1, 1, 2}));
  EXPECT_EQ(counts(3, 1), (Counts{3, 1, 1}));
  EXPECT_EQ(counts(12, 1), (Counts{8, 2, 1}));  // as 16
  EXPECT_EQ(counts(4, 12), (Counts{1, 2, 2}));  // nodes 0, 1, 3 | 4: two of four in a rack, as 16 apart
  EXPECT_EQ(place(ClusterSpec{.devices_per_node = 4}, 4).counts, (Counts{4}));
  EXPECT_THROW(place(c, 65), Error);
  EXPECT_THROW(place(c, 16, 8), Error);
}

}  // namespace
}  // namespace trireme
