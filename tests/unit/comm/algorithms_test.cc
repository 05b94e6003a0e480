// The fast orders against a double loop, their bytes, and what chooses between them.
#include "comm/algorithms.h"

#include "comm/measure.h"
#include "comm/thread/thread_world.h"
#include "ranks.h"

namespace trireme {
namespace {
using namespace testing;

// ranks, node, algorithm
struct Case {
  int ranks, node;
  const char* algorithm;
};
void PrintTo(const Case& c, std::ostream* os) {
  *os << c.ranks << " ranks, " << c.node << " a node, " << c.algorithm;
}

class FastOrders : public ::testing::TestWithParam<Case> {
 protected:
  CommOptions options() const { return {.algorithm = GetParam().algorithm, .node = GetParam().node}; }
};
INSTANTIATE_TEST_SUITE_P(All, FastOrders,
                         ::testing::Values(Case{1, 0, "ring"}, Case{2, 0, "ring"}, Case{3, 0, "ring"},
                                           Case{5, 0, "ring"}, Case{1, 0, "halving"}, Case{2, 0, "halving"},
                                           Case{3, 0, "halving"}, Case{4, 0, "halving"},
                                           Case{5, 0, "halving"}, Case{6, 0, "halving"},
                                           Case{7, 0, "halving"}, Case{4, 2, "hierarchical"},
                                           Case{6, 2, "hierarchical"}, Case{6, 3, "hierarchical"},
                                           Case{4, 1, "hierarchical"}, Case{3, 0, "hierarchical"}));

TEST_P(FastOrders, AgreeWithADoubleLoop) {
  const int ranks = GetParam().ranks;
  with_ranks(ranks, options(), [&](Rank& me) {
    uint64_t trial = 0;
    for (DType t : {DType::i64, DType::f32, DType::bf16})
      for (Reduce op : {Reduce::sum, Reduce::max})
        for (int64_t n : {1, 2, 5, 64, 1001}) {
          Values v = brought(t, n, me.rank, ++trial);
          std::vector<Values> all;
          for (int r = 0; r < ranks; r++) all.push_back(brought(t, n, r, trial));
          me.all->all_reduce({.buf = v.tensor(), .op = op}, {});
          // Values below 10: bf16 rounds each of at most `ranks` partial sums by 2^-9 of at most 10 ranks.
          const double error = t == DType::i64 || op == Reduce::max ? 0
                               : t == DType::f32                    ? 1e-5
                                                                    : 0.02 * ranks * ranks;
          for (int64_t i = 0; i < n; i++) {
            double want = all[0].get(i);
            for (int r = 1; r < ranks; r++) {
              const double x = all[size_t(r)].get(i);
              want = op == Reduce::max ? std::max(want, x) : want + x;
            }
            ASSERT_NEAR(v.get(i), want, error) << name_of(t) << " " << n << " element " << i;
          }
        }
    expect_moved(*me.all);
  });
}

TEST_P(FastOrders, AllReduceIsReduceScatterAndAllGather) {
  const int ranks = GetParam().ranks;
  with_ranks(ranks, options(), [&](Rank& me) {
    for (DType t : {DType::f32, DType::bf16})
      for (int64_t shard : {1, 3, 200}) {
        Values one = brought(t, shard * ranks, me.rank, 9), two = one, apart(t, shard);
        me.all->all_reduce({.buf = one.tensor()}, {});
        me.all->reduce_scatter({.full = two.tensor(), .shard = apart.tensor()}, {});
        me.all->all_gather({.shard = apart.tensor(), .full = two.tensor()}, {});
        EXPECT_EQ(one.bytes(), two.bytes());
      }
    expect_moved(*me.all);
  });
}

TEST_P(FastOrders, EveryRankHasTheSameBits) {
  with_ranks(GetParam().ranks, options(), [&](Rank& me) {
    Values v = brought(DType::bf16, 777, me.rank, 4), all(DType::bf16, 777 * GetParam().ranks);
    me.all->all_reduce({.buf = v.tensor()}, {});
    me.all->all_gather({.shard = v.tensor(), .full = all.tensor()}, {});
    for (int64_t i = 0; i < all.size(); i++) ASSERT_EQ(all.get(i), v.get(i % 777));
  });
}

TEST_P(FastOrders, AreNamedInTheCall) {
  struct Seen : CommObserver {
    std::string algorithm;
    void issued(const CommCall& c) override { algorithm = c.algorithm; }
  };
  const bool one_level = GetParam().node <= 1;
  std::string want = GetParam().algorithm;
  if (want == "hierarchical" && one_level) want = "halving";
  with_ranks(GetParam().ranks, options(), [&](Rank& me) {
    Seen seen;
    Values v(DType::f32, 3);
    me.all->observe(&seen);
    me.all->all_reduce({.buf = v.tensor()}, {});
    EXPECT_EQ(seen.algorithm, want);
    me.all->reduce({.buf = v.tensor()}, {});
    EXPECT_EQ(seen.algorithm, "ordered");
    me.all->broadcast({.buf = v.tensor()}, {});
    EXPECT_EQ(seen.algorithm, "direct");
  });
}

constexpr double kAlpha = 1e-5, kBeta = 1e-9;

TEST(HalfSeconds, AreTheClosedForms) {
  CommOptions o{.inside = {kAlpha, kBeta}};
  const double n = 1 << 20;
  const GroupShape eight{8, 8};
  EXPECT_DOUBLE_EQ(half_seconds(Algorithm::ring, eight, n, o), 7 * kAlpha + 7.0 / 8 * n * kBeta);
  EXPECT_DOUBLE_EQ(half_seconds(Algorithm::halving, eight, n, o), 3 * kAlpha + 7.0 / 8 * n * kBeta);
  EXPECT_DOUBLE_EQ(half_seconds(Algorithm::ordered, eight, n, o), kAlpha + 7.0 / 8 * n * kBeta);
  // 5 ranks: rounds of 2, 1 and 1 blocks.
  EXPECT_DOUBLE_EQ(half_seconds(Algorithm::halving, {5, 5}, n, o), 3 * kAlpha + 4.0 / 5 * n * kBeta);
  // 2 nodes of 4: inside 3/4 n, across half of a quarter by four ranks on one link.
  o.across = {10 * kAlpha, 8 * kBeta};
  EXPECT_DOUBLE_EQ(half_seconds(Algorithm::hierarchical, {8, 4}, n, o),
                   2 * kAlpha + 3.0 / 4 * n * kBeta + 10 * kAlpha + n / 8 * 4 * 8 * kBeta);
  EXPECT_DOUBLE_EQ(half_seconds(Algorithm::ring, {8, 4}, n, o), 7 * (10 * kAlpha + n / 8 * 8 * kBeta));
  // Halving on them: to ranks 4, 2 and 1 further, with 4, 2 and 1 blocks, 4, 2 and 1 ranks on the link.
  EXPECT_DOUBLE_EQ(half_seconds(Algorithm::halving, {8, 4}, n, o),
                   3 * 10 * kAlpha + n / 8 * (4 * 4 + 2 * 2 + 1) * 8 * kBeta);
  // All ranks of a node send to all of the other, over one link; inside is the shorter way.
  EXPECT_DOUBLE_EQ(half_seconds(Algorithm::ordered, {8, 4}, n, o), 10 * kAlpha + 4 * 4 * n / 8 * 8 * kBeta);
  // A round ends with its slowest message: the longer alpha and beta are paid, wherever they are.
  const CommOptions odd{.inside = {7 * kAlpha, 3 * kBeta}, .across = {kAlpha, kBeta / 8}};
  EXPECT_DOUBLE_EQ(half_seconds(Algorithm::halving, {8, 4}, n, odd),
                   3 * 7 * kAlpha + n / 8 * (4 + 2 + 1) * 3 * kBeta);
  EXPECT_DOUBLE_EQ(half_seconds(Algorithm::ring, {8, 4}, n, odd), 7 * (7 * kAlpha + n / 8 * 3 * kBeta));
  EXPECT_DOUBLE_EQ(half_seconds(Algorithm::hierarchical, {8, 4}, n, odd),
                   2 * 7 * kAlpha + 3.0 / 4 * n * 3 * kBeta + kAlpha + n / 8 * 4 * kBeta / 8);
}

TEST(Choose, ByPayloadAndLinks) {
  CommOptions o{.algorithm = "auto", .node = 4, .inside = {kAlpha, kBeta}, .across = {kAlpha, 20 * kBeta}};
  const GroupShape two_nodes{8, 4};
  EXPECT_EQ(choose(two_nodes, 64 << 20, o), Algorithm::hierarchical);
  o.across.beta = kBeta;  // as fast as inside, but shared: only the ring sends once a node
  EXPECT_EQ(choose(two_nodes, 64 << 20, o), Algorithm::ring);
  EXPECT_NE(choose(two_nodes, 64, o), Algorithm::ring) << "small: rounds are what costs";
  EXPECT_EQ(choose({5, 5}, 64 << 20, o), Algorithm::halving);
  o.algorithm = "ring";
  EXPECT_EQ(choose(two_nodes, 64, o), Algorithm::ring);
  o.algorithm = "ordered";
  EXPECT_EQ(choose(two_nodes, 64 << 20, o), Algorithm::ordered);
  EXPECT_EQ(CommOptions().algorithm, "ordered");
}

TEST(ShapeOf, GroupsOnNodes) {
  CommOptions o{.node = 4};
  auto shape = [&](std::vector<int> ranks) {
    GroupShape g = shape_of(ranks, o);
    return std::pair(g.size, g.node);
  };
  EXPECT_EQ(shape({0, 1, 2, 3, 4, 5, 6, 7}), std::pair(8, 4));
  EXPECT_EQ(shape({0, 2, 4, 6}), std::pair(4, 2));
  EXPECT_EQ(shape({0, 4, 8}), std::pair(3, 1));
  EXPECT_EQ(shape({1, 2, 3}), std::pair(3, 3));
  EXPECT_EQ(shape({0, 1, 4, 5, 6, 7}), std::pair(6, 6)) << "nodes of unequal size are one level";
  EXPECT_EQ(shape({0, 1, 4}), std::pair(3, 3));
  o.node = 0;
  EXPECT_EQ(shape({0, 1, 2, 3, 4, 5, 6, 7}), std::pair(8, 8));
}

TEST(MeasureLink, IsAgreedOn) {
  for (int ranks : {2, 3})
    with_ranks(ranks, [&](Rank& me) {
      const LinkCost mine = measure_link(*me.all, 0.01, 1 << 16);
      std::vector<LinkCost> all(static_cast<size_t>(ranks));
      gather_bytes(*me.all, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
      for (const LinkCost& l : all) {
        EXPECT_GT(l.alpha, 0);
        EXPECT_GE(l.beta, 0);
        EXPECT_EQ(l.alpha, mine.alpha);
        EXPECT_EQ(l.beta, mine.beta);
      }
    });
}

TEST(MeasureLink, EndsWhenRankZeroIsTold) {
  with_ranks(2, [&](Rank& me) {
    int asked = 0;
    const LinkCost l = measure_link(*me.all, 4, 1 << 10, [&] { return ++asked > 0; });
    EXPECT_GT(l.alpha, 0);
    EXPECT_EQ(asked, me.all->rank() == 0 ? 2 : 0);  // of a message of a byte, and of a long one
  });
}

TEST(Options, LinksOfAClusterFile) {
  const LinkCost l = cost_of(LinkSpec{.latency = 2e-6, .bandwidth = 4e9});
  EXPECT_EQ(l.alpha, 2e-6);
  EXPECT_EQ(l.beta, 0.25e-9);
  EXPECT_EQ(cost_of(LinkSpec{}).beta, 0);
}

TEST(Options, AnUnknownAlgorithmIsRefused) {
  try {
    ThreadWorld world(2, {.algorithm = "tree"});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    EXPECT_NE(std::string(e.what()).find("\"tree\" is no way to add up; there are ordered, ring"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace trireme
