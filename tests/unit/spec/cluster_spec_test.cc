#include "spec/cluster_spec.h"

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
  EXPECT_EQ(c.peak_flops("f16"), 1.25e12);  // computed in f32
  EXPECT_EQ(c.peak_flops("fp8"), 0);
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
