#include "spec/cluster_spec.h"

#include "spec/cluster_links.h"
#include "spec/toml.h"
#include "testing.h"

namespace trireme {
namespace {
using testing::error_of;

TEST(ClusterSpec, ReadsBackWhatItSaved) {
  ClusterSpec c{.name = "box \"7\"",
                .nodes = 3,
                .devices_per_node = 8,
                .peak = {.f32 = 1.25e12, .bf16 = 9.894e14},
                .memory_bytes = 85899345920,
                .memory_bandwidth = 3.35e12,
                .intra_node = {.latency = 3e-6, .bandwidth = 4.5e11},
                .intra_node_mpi = {.latency = 9e-6, .bandwidth = 5e9},
                .inter_node = {.latency = 1.5e-5, .bandwidth = 4e11},
                .price_per_hour = 2.5,
                .threads = 2,
                .source = "measured by bench",
                .date = "2025-01-31"};
  EXPECT_TRUE(parse_cluster(save_cluster(c), "c.toml") == c) << save_cluster(c);
  EXPECT_TRUE(parse_cluster("", "c.toml") == ClusterSpec());
  EXPECT_EQ(c.devices(), 24);
  EXPECT_EQ(c.peak_flops("bf16"), 9.894e14);
  EXPECT_EQ(c.peak_flops("f32"), 1.25e12);
  EXPECT_EQ(c.peak_flops("f16"), 1.25e12);  // not native: computed in f32
  EXPECT_EQ(c.peak_flops("fp8"), 0);
  c.source = "of \"a\", \"b\", ";
  EXPECT_TRUE(parse_cluster(save_cluster(c), "c.toml") == c) << save_cluster(c);
  c.alone = {.ranks = 1, .threads = 2};
  c.alone.ops =
      Texts::of({"add \"x\",  1x1x5=1e-6", "mul f32 1x1x5=1e-6", "add \", ", "\", \"", "add\\", "x"});
  const std::string ops = save_cluster(c);
  EXPECT_HAS(ops, "\",\n  \"mul f32 1x1x5=1e-6\"");
  for (const TomlEntry& e : parse_toml(ops, "c.toml")) {
    if (e.key != "alone.ops") continue;
    EXPECT_EQ(std::get<std::vector<std::string>>(e.value), c.alone.ops.list) << ops;
  }
  c.alone = {};
  c.peak.f16 = 9.8e14, c.peak.fp8 = 1.9e15, c.peak.fp4 = 4e15;
  EXPECT_EQ(c.peak_flops("f16"), 9.8e14);
  EXPECT_EQ(c.peak_flops("fp8"), 1.9e15);
  EXPECT_EQ(c.peak_flops("fp4"), 4e15);
}

// Two machines under a leaf talk at the full rate, and groups beyond it at a third.
TEST(ClusterSpec, ALeafIsALevel) {
  const ClusterSpec c = parse_cluster(
      "nodes = 8\ndevices_per_node = 8\ninter_node.bandwidth = 300e9\nleaf_nodes = 2\noversubscription = 3\n",
      "c");
  const std::vector<TierSpec> levels = c.levels();
  ASSERT_EQ(levels.size(), 2u);
  EXPECT_EQ(levels[0].size, 2);
  EXPECT_EQ(levels[0].link.bandwidth, 300e9);
  EXPECT_EQ(levels[1].size, 4);
  EXPECT_EQ(levels[1].link.bandwidth, 100e9);
  EXPECT_EQ(c.between_nodes().bandwidth, 100e9);
  EXPECT_EQ(link_among_nodes(c, 2).bandwidth, 300e9);
  EXPECT_EQ(link_among_nodes(c, 3).bandwidth, 100e9);
  EXPECT_TRUE(parse_cluster(save_cluster(c), "c") == c) << save_cluster(c);
  EXPECT_HAS(error_of([] { parse_cluster("oversubscription = 2\n", "c"); }), "give leaf_nodes");
  EXPECT_HAS(error_of([] { parse_cluster("nodes = 8\nleaf_nodes = 3\n", "c"); }), "3 under a leaf");
  EXPECT_HAS(error_of([] { parse_cluster("leaf_nodes = 1\n[[tier]]\nsize = 1\n", "c"); }),
             "leave leaf_nodes out");
}

constexpr std::string_view kTwoKinds = R"(nodes = 3
devices_per_node = 8
[[kind]]
name = "H100"
nodes = 1
peak.bf16 = 989e12
memory_bytes = 85899345920
memory_bandwidth = 3.35e12
price_per_hour = 4
watts = 700
[[kind]]
name = "A100-40GB"
nodes = 2
peak.bf16 = 312e12
memory_bytes = 42949672960
memory_bandwidth = 1.555e12
price_per_hour = 1
watts = 400
)";

TEST(ClusterSpec, KindsAreAsSlowAsTheSlowest) {
  const ClusterSpec c = parse_cluster(kTwoKinds, "c");
  EXPECT_EQ(c.peak.bf16, 312e12);
  EXPECT_EQ(c.memory_bytes, 42949672960);
  EXPECT_EQ(c.memory_bandwidth, 1.555e12);
  EXPECT_DOUBLE_EQ(c.price_per_hour, 2);  // (4 + 1 + 1) / 3
  EXPECT_DOUBLE_EQ(c.power.device, 500);
  EXPECT_TRUE(parse_cluster(save_cluster(c), "c") == c) << save_cluster(c);
  EXPECT_HAS(error_of([] { parse_cluster("nodes = 4\n" + std::string(kTwoKinds).substr(10), "c"); }),
             "the kinds have 3");
  EXPECT_HAS(error_of([] { parse_cluster("memory_bytes = 1e11\n" + std::string(kTwoKinds), "c"); }),
             "leave it out here");
}

TEST(ClusterSpec, CheckpointsAreWrittenAsFastAsMachinesAndStorageAllow) {
  ClusterSpec c{.nodes = 4};
  c.disk_bandwidth = 2e9;
  EXPECT_EQ(c.checkpoint_bandwidth(), 8e9);  // own disks
  c.storage.bandwidth = 50e9;
  EXPECT_EQ(c.checkpoint_bandwidth(), 50e9);
  c.storage.node_bandwidth = 10e9;
  EXPECT_EQ(c.checkpoint_bandwidth(), 40e9);
  EXPECT_EQ(PowerSpec({.device = 700, .node = 4600, .pue = 1.2}).watts(8, 1), 12240);
}

constexpr std::string_view kThreeLevels = R"(nodes = 1024
devices_per_node = 8
launch = 7e-6
[intra_node]
bandwidth = 450e9
efficiency = 0.8125
reduce_bandwidth = 308e9
[[tier]]
name = "rack"
size = 16
bandwidth = 400e9
latency = 5e-6
round = 3e-6
message = 1e-6
ramp = 2e-6
[[tier]]
name = "pod"
kind = "torus"
size = 64
dims = [4, 16]
bandwidth = 100e9
latency = 8e-6
)";

TEST(ClusterSpec, HasLevelsAboveTheNode) {
  const ClusterSpec c = parse_cluster(kThreeLevels, "c.toml");
  ASSERT_EQ(c.tiers.size(), 2u);
  EXPECT_EQ(c.tiers[0].name, "rack");
  EXPECT_EQ(c.tiers[0].link.round, 3e-6);
  EXPECT_EQ(c.tiers[1].dims, (Numbers{4, 16}));
  EXPECT_TRUE(c.tiers[1].torus() && !c.tiers[0].torus());
  EXPECT_TRUE(c.levels() == c.tiers);
  EXPECT_EQ(c.between_nodes().bandwidth, 100e9);  // the slower level's
  EXPECT_EQ(c.between_nodes().latency, 8e-6);
  EXPECT_TRUE(parse_cluster(save_cluster(c), "saved.toml") == c) << save_cluster(c);
  EXPECT_TRUE(parse_cluster("nodes = 2\ntier = [{name = \"rack\", size = 2}]", "c.toml").tiers[0].size == 2);
}

// Nodes of one rack meet the rack's link alone.
TEST(ClusterSpec, LinksAmongSomeNodes) {
  const ClusterSpec c = parse_cluster(kThreeLevels, "c.toml");
  const int64_t rack = c.tiers[0].size;
  for (const int64_t nodes : {int64_t(1), int64_t(2), rack})
    EXPECT_TRUE(link_among_nodes(c, nodes) == c.tiers[0].link) << nodes;
  for (const int64_t nodes : {rack + 1, c.nodes, 100 * c.nodes})
    EXPECT_TRUE(link_among_nodes(c, nodes) == c.between_nodes()) << nodes;
  EXPECT_FALSE(link_among_nodes(c, rack) == c.between_nodes());
  const ClusterSpec plain =
      parse_cluster("nodes = 4\ninter_node = {latency = 1e-5, bandwidth = 5e10}", "c.toml");
  EXPECT_TRUE(link_among_nodes(plain, 2) == plain.inter_node);
}

TEST(ClusterSpec, APlainFileIsTwoLevels) {
  const ClusterSpec c = parse_cluster("nodes = 4\ninter_node = {latency = 1e-5, bandwidth = 5e10}", "c.toml");
  ASSERT_EQ(c.levels().size(), 1u);
  EXPECT_EQ(c.levels()[0].size, 4);
  EXPECT_TRUE(c.levels()[0].link == c.inter_node && c.between_nodes() == c.inter_node);
  EXPECT_TRUE(ClusterSpec().levels().empty());
  for (const char* fine : {"tier", "efficiency", "launch", "ramp", "fp8"})
    EXPECT_EQ(save_cluster(c).find(fine), std::string::npos) << save_cluster(c);
}

TEST(ClusterSpec, TiersThatContradictAreNamed) {
  const auto wrong = [](std::string_view text) {
    return testing::lines_of(error_of([&] { parse_cluster(text, "c.toml"); }));
  };
  EXPECT_EQ(
      wrong("nodes = 9\ninter_node.bandwidth = 1e9\n[[tier]]\nsize = 2\nkind = \"tours\"\n[[tier]]\nsze = 4\n"
            "kind = \"torus\"\n[[tier]]\nsize = 4\nkind = \"torus\"\ndims = [2, 3]\n[[tire]]\nx = 1\n"),
      (std::vector<std::string>{
          "c.toml:1: nodes: 9: nodes = 9, and the tiers' sizes multiply to 8; give equal numbers",
          "c.toml:2: inter_node.bandwidth: 1000000000.0: the first [[tier]] says how nodes are joined; leave "
          "inter_node out",
          "c.toml:5: tier[1].kind: \"tours\" is not known, did you mean \"torus\"; give one of switch, "
          "torus, such as \"switch\"",
          "c.toml:7: tier[2].sze: unknown key, did you mean tier[2].size?",
          "c.toml:8: tier[2].kind: \"torus\": a torus needs its sides, such as dims = [4, 4]",
          "c.toml:12: tier[3].dims: [2, 3]: the product of dims is 6 and size is 4; give equal numbers",
          "c.toml:13: tire: unknown section, did you mean tier?"}));
  EXPECT_EQ(wrong("tier = 3\n"),
            (std::vector<std::string>{"c.toml:1: tier: 3 is a whole number; it is a list "
                                      "of tables: write [[tier]] above the keys of each"}));
  EXPECT_EQ(
      wrong("[tier]\nsize = 3\n"),
      (std::vector<std::string>{"c.toml:1: tier: it is a section; it is a list of tables: write [[tier]] "
                                "above the keys of each"}));
  EXPECT_HAS(error_of([] { parse_cluster("[[tier]]\ndims = [1]\n", "c.toml"); }), "a switch has no dims");
  std::string many = "nodes = 1\n";
  for (int i = 0; i < 9; i++) many += "[[tier]]\n";
  EXPECT_EQ(wrong(many), (std::vector<std::string>{"c.toml:2: tier: 9 levels; give at most 8"}));
  std::string list = "tier = [{}";  // each would become a level with all its keys
  for (int i = 0; i < 20'000; i++) list += ",{}";
  EXPECT_EQ(wrong(list + "]\n"),
            (std::vector<std::string>{"c.toml:1: tier: 20001 tables in the list; give at most 100"}));
}

TEST(ClusterSpec, AllErrorsAtOnce) {
  EXPECT_EQ(testing::lines_of(error_of([] {
              parse_cluster("nods = 2\npeak.f32 = \"fast\"\nmemory_bandwidth = -1\n[peek]\nx = 1\n",
                            "c.toml");
            })),
            (std::vector<std::string>{
                "c.toml:1: nods: unknown key, did you mean nodes?",
                "c.toml:2: peak.f32: \"fast\" is a string; give a number from 0 to 1e+21, such as 0.0",
                "c.toml:3: memory_bandwidth: -1 is out of range; give a number from 0 to 1e+18, such as 0.0",
                "c.toml:4: peek: unknown section, did you mean peak?"}));
  EXPECT_HAS(error_of([] { load_cluster("/nonexistent/c.toml"); }), "/nonexistent/c.toml");
}

}  // namespace
}  // namespace trireme
