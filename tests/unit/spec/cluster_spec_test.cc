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
