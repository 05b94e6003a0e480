// Two cluster files beside each other: keys and what follows, by hand.
#include "cost/compare_clusters.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cost/collective_time.h"
#include "source_dir.h"

namespace trireme {
namespace {

ClusterSpec shipped(const char* name) {
  return load_cluster(test::source_dir() / "configs/cluster" / (std::string(name) + ".toml"));
}
const KeyDifference* difference(const ClusterComparison& c, std::string_view key) {
  const auto it = std::find_if(c.differences.begin(), c.differences.end(),
                               [&](const KeyDifference& d) { return d.key == key; });
  return it == c.differences.end() ? nullptr : &*it;
}
const Consequence& consequence(const ClusterComparison& c, std::string_view begins) {
  for (const Consequence& x : c.consequences)
    if (x.what.starts_with(begins)) return x;
  ADD_FAILURE() << begins;
  return c.consequences.front();
}

TEST(CompareClusters, TheSameH100BehindEthernet) {
  const ClusterComparison c = compare_clusters(shipped("h100-p5"), shipped("h100-ethernet"));
  ASSERT_TRUE(difference(c, "inter_node.bandwidth"));
  EXPECT_DOUBLE_EQ(difference(c, "inter_node.bandwidth")->ratio.value(), 12.5 / 400);
  EXPECT_FALSE(difference(c, "peak.bf16") || difference(c, "name") || difference(c, "source"));
  EXPECT_FALSE(difference(c, "price_per_hour")->ratio);  // 0 = not known
  EXPECT_DOUBLE_EQ(consequence(c, "ridge of memory").a.value(), 989.4 / 3.35);
  EXPECT_DOUBLE_EQ(consequence(c, "ridge of the network").a.value(), 989.4e3 / (50 * 0.85));
  EXPECT_NEAR(consequence(c, "ridge of the network").ratio().value(), 32, 1e-9);
  EXPECT_EQ(consequence(c, "all_reduce of 1 GiB in").ratio(), 1.0);
  // 13.5 GB of gradients over 64 devices: a ring's 2 x 63 / 64 at a node's 340 and 10.6 GB/s.
  const Consequence& sums = consequence(c, "all_reduce of a 7B's");
  EXPECT_NEAR(sums.a.value(), 2 * 63. / 64 * 13.4768 / 340, 0.005);
  EXPECT_NEAR(sums.b.value(), 2 * 63. / 64 * 13.4768 / 10.625, 0.02);
  EXPECT_EQ(sums.how_a, "ring, 64 devices");
  const double computing = 6 * 6738415616. * 4096 / (0.5 * 989.4e12);
  EXPECT_DOUBLE_EQ(consequence(c, "computing").a.value(), computing);
  EXPECT_DOUBLE_EQ(consequence(c, "effective").b.value(), 0.5 * computing / (computing + *sums.b));
  EXPECT_NEAR(consequence(c, "price").a.value(), 4.916 / (0.9894 * *consequence(c, "effective").a), 1e-9);
  EXPECT_FALSE(consequence(c, "price").b);
}

TEST(CompareClusters, WhatAFileDoesNotSayIsLeftOut) {
  const ClusterComparison c = compare_clusters(ClusterSpec(), shipped("h100-sxm-8"));
  for (const Consequence& x : c.consequences) EXPECT_FALSE(x.a) << x.what;
  EXPECT_TRUE(consequence(c, "all_reduce of 1 GiB in").b);
  EXPECT_FALSE(consequence(c, "all_reduce of a 7B's").b);  // one node
  EXPECT_TRUE(compare_clusters(shipped("h200-sxm-8"), shipped("h200-sxm-8")).differences.empty());
}

TEST(CompareClusters, TiersOfOneSideAlone) {
  const ClusterComparison c = compare_clusters(shipped("h100-p5"), shipped("h200-sxm-8"));
  ASSERT_TRUE(difference(c, "tier[2].size"));
  EXPECT_EQ(difference(c, "tier[2].size")->a, "");
  EXPECT_EQ(difference(c, "tier[2].size")->b, "4");
  const ClusterComparison back = compare_clusters(shipped("h200-sxm-8"), shipped("h100-p5"));
  ASSERT_TRUE(difference(back, "tier[2].size"));
  EXPECT_EQ(difference(back, "tier[2].size")->b, "");
  // A chip that is its own node: eight stand for one.
  EXPECT_EQ(
      consequence(compare_clusters(shipped("tpu-v5p"), shipped("gb200-nvl72")), "all_reduce of a 7B's").how_a,
      "torus, 64 devices");
}

}  // namespace
}  // namespace trireme
