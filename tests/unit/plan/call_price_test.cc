// Calls on clusters whose files say what collectives need, and plain files' as they were.
#include "catalog/call_price.h"

#include <gtest/gtest.h>

#include <numeric>

#include "comm/algorithms.h"
#include "measure/price.h"
#include "source_dir.h"

namespace trireme {
namespace {

ClusterSpec p5() {
  return load_cluster(test::source_dir() / "configs/cluster/h100-p5.toml");
}
ClusterSpec plain_pair() {
  ClusterSpec c;
  c.nodes = 2, c.devices_per_node = 4;
  c.intra_node = {.latency = 1e-6, .bandwidth = 1e10}, c.inter_node = {.latency = 5e-5, .bandwidth = 1e9};
  return c;
}
std::vector<int> every(int stride, int count, int first = 0) {
  std::vector<int> ranks;
  for (int i = 0; i < count; i++) ranks.push_back(first + i * stride);
  return ranks;
}
CommCall call(Collective kind, std::string_view algorithm, int64_t payload) {
  CommCall c;
  c.kind = kind, c.algorithm = algorithm, c.payload = payload, c.wire = payload;
  return c;
}

TEST(CallPrice, PlacesWorldRanks) {
  const ClusterSpec c = p5();
  using Counts = std::vector<int64_t>;
  const auto counts = [&](const std::vector<int>& ranks) { return placement_of(ranks, 128, c).counts; };
  EXPECT_EQ(counts(every(1, 8)), (Counts{8, 1}));
  EXPECT_EQ(counts(every(1, 4, 6)), (Counts{2, 2}));  // across an edge
  EXPECT_EQ(counts(every(8, 16)), (Counts{1, 16}));
  EXPECT_EQ(counts(every(2, 8)), (Counts{4, 2}));
  EXPECT_EQ(counts(every(3, 5)), (Counts{3, 2}));     // 0 3 6 | 9 12: as the fuller node
  EXPECT_EQ(counts(every(1, 256)), (Counts{8, 32}));  // twice the file's nodes
  EXPECT_EQ(placement_of(every(1, 2), 4, c).sharing, 4);
  EXPECT_EQ(placement_of(every(1, 2), 64, c).sharing, 8);
  const ClusterSpec pod = load_cluster(test::source_dir() / "configs/cluster/h200-sxm-8.toml");
  EXPECT_EQ(placement_of(every(128, 8), 1024, pod).counts, (Counts{1, 2, 4}));
}

TEST(CallPrice, DevicesTalkByLibraries) {
  const ClusterSpec c = p5();
  ASSERT_TRUE(knows_collectives(c));
  const CommOptions links = {};
  const Placement eight{.counts = {8, 1}, .sharing = 8}, two{.counts = {1, 2}, .sharing = 8};
  const auto seconds = [&](Collective kind, std::string_view algorithm, const std::vector<int>& ranks) {
    return library_call_seconds(call(kind, algorithm, 1 << 26), ranks, 128, c, links);
  };
  const double n = 1 << 26;
  EXPECT_DOUBLE_EQ(seconds(Collective::all_reduce, "ring", every(1, 8)),
                   *collective_seconds(CollectiveKind::all_reduce, CollectiveWay::ring, n, eight, c));
  EXPECT_DOUBLE_EQ(seconds(Collective::all_reduce, "halving", every(1, 8)),
                   *collective_seconds(CollectiveKind::all_reduce, CollectiveWay::halving, n, eight, c));
  EXPECT_DOUBLE_EQ(seconds(Collective::all_to_all, "direct", every(1, 8)),
                   collective_time(CollectiveKind::all_to_all, n, eight, c).seconds);
  EXPECT_DOUBLE_EQ(seconds(Collective::p2p, "direct", every(8, 2)),
                   collective_time(CollectiveKind::p2p, n, two, c).seconds);
  EXPECT_DOUBLE_EQ(seconds(Collective::broadcast, "direct", every(8, 2)),
                   collective_time(CollectiveKind::broadcast, n, two, c).seconds);
  CommCall message = call(Collective::p2p, "direct", 1 << 26);
  message.wire = 1 << 20;  // what is sent counts
  EXPECT_DOUBLE_EQ(library_call_seconds(message, every(8, 2), 128, c, links),
                   collective_time(CollectiveKind::p2p, 1 << 20, two, c).seconds);
  EXPECT_EQ(seconds(Collective::all_reduce, "ring", every(1, 1)), 0);
  EXPECT_EQ(seconds(Collective::barrier, "direct", every(1, 8)), 0);
}

// Owner-order sums keep their own price, on the node that the file has.
TEST(CallPrice, OwnersSumsKeepTheirPrice) {
  const ClusterSpec c = p5();
  CommOptions links;
  links.inside = cost_of(c.intra_node), links.across = cost_of(c.between_nodes()), links.node = 8;
  for (const std::vector<int>& ranks : {every(1, 8), every(8, 4), every(1, 16)}) {
    const CommCall sum = call(Collective::all_reduce, "ordered", 12345678);
    EXPECT_DOUBLE_EQ(library_call_seconds(sum, ranks, 128, c, links),
                     call_seconds(sum, shape_of(ranks, links), links));
    CommOptions anywhere = links;  // as rank threads have it: all on one machine
    anywhere.node = 0;
    EXPECT_DOUBLE_EQ(library_call_seconds(sum, ranks, 128, c, anywhere),
                     call_seconds(sum, shape_of(ranks, links), links));
  }
}

// A torus of chips that are their own nodes has the bandwidth of every link, and every call its price: what
// it lacks, a node's inside, nobody sends over.
TEST(CallPrice, ATorusStatesAllOfItsWires) {
  ClusterSpec c = load_cluster(test::source_dir() / "configs/cluster/tpu-v5p.toml");
  ASSERT_FALSE(cost_of(c.intra_node).known());
  EXPECT_TRUE(wires_stated(c));
  CommOptions links;
  links.across = cost_of(c.between_nodes());
  for (const Collective k : {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                             Collective::all_to_all, Collective::p2p}) {
    CommCall message = call(k, k == Collective::p2p ? "direct" : "ordered", 12345678);
    message.wire = 12345678;
    EXPECT_GT(library_call_seconds(message, every(8, 24), 6144, c, links), 0);
  }
  c.tiers.back().link.bandwidth = 0;
  EXPECT_FALSE(wires_stated(c));
  EXPECT_FALSE(wires_stated(plain_pair()));
  EXPECT_TRUE(wires_stated(load_cluster(test::source_dir() / "configs/cluster/h200-sxm-8.toml")));
}

// What adds nothing up has no owners: libraries gather the fastest way, whatever the order of sums.
TEST(CallPrice, GathersGoTheFastestWay) {
  const ClusterSpec c = p5();
  for (const std::vector<int>& ranks : {every(1, 8), every(8, 4), every(1, 16)}) {
    const CommCall gather = call(Collective::all_gather, "direct", 123456789);
    EXPECT_DOUBLE_EQ(
        library_call_seconds(gather, ranks, 128, c, {}),
        collective_time(CollectiveKind::all_gather, 123456789, placement_of(ranks, 128, c), c).seconds);
  }
}

// A file of two levels and no more gives what it gave: alpha and beta of comm's own algorithms.
TEST(CallPrice, PlainFilesArePricedAsTheyWere) {
  EXPECT_FALSE(knows_collectives(plain_pair()));
  EXPECT_FALSE(knows_collectives(ClusterSpec()));
  Tape tape;
  tape.groups = {{"dp", every(1, 4)}};
  for (const char* name : {"all_reduce", "all_gather", "all_to_all", "broadcast"})
    for (const char* algorithm : {"ordered", "ring", "halving", "direct"}) {
      Piece p;
      p.kind = PieceKind::call, p.group = 0, p.payload = 1000000, p.wire = 750000;
      p.name = tape.keep(name), p.algorithm = tape.keep(algorithm);
      tape.pieces.push_back(p);
    }
  Piece message;
  message.kind = PieceKind::send, message.peer = 3, message.payload = message.wire = 500000;
  message.name = tape.keep("p2p"), message.algorithm = tape.keep("direct");
  tape.pieces.push_back(message);
  RunSpec run;
  run.layout.dp = 4;
  const ClusterSpec c = plain_pair();
  const std::vector<Price> prices = price(tape, c, run);
  const CommOptions links = options_of(run, c);
  ASSERT_EQ(prices.size(), 17u);
  EXPECT_EQ(prices[1].time, std::llround(1e9 * 2 * (3e-6 + 0.75e6 / 1e10)));  // ring, 4 ranks of one machine
  EXPECT_EQ(prices[16].time, std::llround(1e9 * (1e-6 + 0.5e6 / 1e10)));
  ClusterSpec more = c;
  more.intra_node.round = 9e-6;
  EXPECT_EQ(price(tape, more, run)[1].time, std::llround(1e9 * 2 * (3 * 9e-6 + 0.75e6 / 1e10)));
}

// Rank threads stand for the ranks of many nodes: what leaves a node costs the link between nodes, in a file
// of nothing but latency and bandwidth too; and a file of too few nodes is named.
TEST(CallPrice, NodesOfAPlainFileArePriced) {
  Tape tape;
  tape.groups = {{"tp", every(1, 4)}, {"dp", every(4, 2)}};
  for (const int group : {0, 1}) {
    Piece p;
    p.kind = PieceKind::call, p.group = group, p.payload = 1000000, p.wire = 750000;
    p.name = tape.keep("all_reduce"), p.algorithm = tape.keep("ring");
    tape.pieces.push_back(p);
  }
  Piece message;
  message.kind = PieceKind::send, message.peer = 4, message.payload = message.wire = 500000;
  message.name = tape.keep("p2p"), message.algorithm = tape.keep("direct");
  tape.pieces.push_back(message);
  RunSpec run;
  run.layout.tp = 4, run.layout.dp = 2, run.cluster.file = "two.toml";
  ClusterSpec c = plain_pair();
  std::vector<Price> prices = price(tape, c, run);
  EXPECT_EQ(prices[0].time, std::llround(1e9 * 2 * 3 * (1e-6 + 0.25e6 / 1e10)));  // in a node
  EXPECT_EQ(prices[1].time, std::llround(1e9 * 2 * (5e-5 + 0.5e6 / 1e9)));        // to the other
  EXPECT_EQ(prices[2].time, std::llround(1e9 * (5e-5 + 0.5e6 / 1e9)));
  EXPECT_EQ(too_few_devices(run, c), "");
  EXPECT_EQ(options_of(run, c).node, 0);  // real rank threads share a machine
  c.nodes = 1;
  EXPECT_EQ(price(tape, c, run)[1].time, prices[1].time);
  EXPECT_EQ(
      too_few_devices(run, c),
      "two.toml has 1 node of 4 devices = 4, and the run takes 8 ranks = 2 nodes: priced as if it had as "
      "many, by its links between nodes; right is nodes = 2 in that file");
  c.inter_node = {};
  EXPECT_EQ(price(tape, c, run)[1].time, std::llround(1e9 * 2 * (1e-6 + 0.5e6 / 1e10)));
  EXPECT_NE(too_few_devices(run, c).find("one node's links, for it has no others; right is nodes = 2 and "
                                         "inter_node.bandwidth and .latency in that file"),
            std::string::npos);
  // Closed forms assume the link of the catalog's device.
  c.name = "H100";
  EXPECT_NE(too_few_devices(run, c, true).find("by a link between nodes of 50 GB/s a device, H100's in"),
            std::string::npos);
  EXPECT_EQ(too_few_devices(run, ClusterSpec()), "");  // a CPU's ranks are threads
}

}  // namespace
}  // namespace trireme
