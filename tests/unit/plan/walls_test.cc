// The closed forms of `trireme estimate` against their textbook formulas, written out.
#include "estimate/walls.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace trireme {
namespace {

const Worked& line_of(const std::vector<WorkedSection>& all, std::string_view key) {
  for (const WorkedSection& s : all)
    for (const Worked& w : s.lines)
      if (w.key == key) return w;
  ADD_FAILURE() << "no line " << key;
  static const Worked kNone;
  return kNone;
}
double also(const Worked& w, std::string_view key) {
  for (const auto& [name, value] : w.also)
    if (name == key) return value;
  ADD_FAILURE() << w.key << " has no " << key;
  return 0;
}

WallsCase gpt(int64_t layers, int64_t hidden) {
  WallsCase c;
  c.name = "gpt";
  c.model = ModelSpec::of("gpt2");
  c.model->layers = layers;
  c.model->hidden = hidden;
  c.model->heads = 16;
  c.model->vocab = 50257;
  c.model->finish(2048);
  c.parameters = c.active = 7.5e9;
  c.seq = 2048;
  c.micro = 2;
  return c;
}

// Rajbhandari et al. 2020, section 7, for each of m microbatches: zero 2 sends (m + 1) / 2 times what data
// parallelism does, zero 3 sends 3 m / 2 times that.
TEST(Walls, ZeroSendsByMicrobatch) {
  WallsCase c;
  c.parameters = 7.5e9;
  c.gpus = 64;
  c.microbatches = 18;
  const auto all = walls_of(c);
  const double once = 2 * 63.0 / 64 * 2 * 7.5e9;
  const double times[] = {1, 1, 9.5, 27};
  for (int zero = 0; zero < 4; zero++) {
    const Worked& w = line_of(all, "zero" + std::to_string(zero));
    EXPECT_DOUBLE_EQ(also(w, "traffic"), times[zero]);
    EXPECT_DOUBLE_EQ(also(w, "sent"), times[zero] * once);
  }
  EXPECT_NE(line_of(all, "zero3").text.find("27 x the traffic"), std::string::npos);
}

TEST(Walls, OneDeviceInTotal) {
  WallsCase c = gpt(32, 4096);
  c.gpus = 16;
  c.pp = 4;
  c.microbatches = 8;
  c.zero = 1;
  const double state = 7.5e9 / 4 * (2 + 2 + 12.0 / 4);
  const double layer = 2048.0 * 2 * 4096 * (18 + 4 * 4);  // s b h (18 + 4 f / h), f = 4 h
  EXPECT_NEAR(line_of(walls_of(c), "state_and_activations").value / (state + 4 * 8 * layer), 1, 1e-12);
  c.microbatches = 2;  // fewer in flight than stages
  EXPECT_NEAR(line_of(walls_of(c), "state_and_activations").value / (state + 2 * 8 * layer), 1, 1e-12);
  c.recompute = true;
  EXPECT_NEAR(line_of(walls_of(c), "state_and_activations").value / (state + 2 * 8 * 2048.0 * 2 * 2 * 4096),
              1, 1e-12);
}

// 64 devices, tp 2 and ep 8: a device has 1 / 8 of the experts, as 8 devices have the same, and 1 / 2 of all
// else, as 32 have. DeepSpeed-MoE (2201.05596, section 5): experts have fewer replicas than all else.
TEST(Walls, ExpertsAreDividedByEp) {
  WallsCase c;
  c.model = ModelSpec::of("mixtral");
  c.model->finish(4096);
  c.parameters = double(parameters(*c.model));
  const double experts = double(c.model->layers) * double(c.model->experts) * 3 * double(c.model->hidden) *
                         double(c.model->moe_ffn);
  const double dense = c.parameters - experts;
  ASSERT_GT(experts, dense / 2);
  c.gpus = 64;
  c.ep = 8;
  c.tp = 2;
  const double a = dense / 2;
  const double b = experts / 8;
  const auto all = walls_of(c);
  EXPECT_NEAR(line_of(all, "zero0").value / (16 * (a + b)), 1, 1e-12);
  EXPECT_NEAR(line_of(all, "zero2").value / (2 * (a + b) + 14 * (a / 32 + b / 8)), 1, 1e-12);
  EXPECT_NEAR(line_of(all, "zero3").value / (16 * (a / 32 + b / 8)), 1, 1e-12);
  EXPECT_NEAR(line_of(all, "gradients_sent").value / (2 * 2 * (31.0 / 32 * a + 7.0 / 8 * b)), 1, 1e-12);
}

// 16 ranks of two nodes: a tree takes 1 / 8 of the bytes of each rank to the other node. Two ranks in
// two nodes have the link between nodes alone.
TEST(Walls, GradientsTakeWhatTheirPlacesSay) {
  WallsCase c;
  c.parameters = 1e9;
  c.gpus = 16;
  c.figures.near = 8;
  c.figures.bus = 450e9;
  c.figures.nic = 50e9;
  EXPECT_TRUE(line_of(walls_of(c), "gradients_sent").also.empty());
  ClusterSpec site;
  site.nodes = 2;
  site.devices_per_node = 8;
  site.intra_node.bandwidth = 450e9;
  site.inter_node.bandwidth = 400e9;
  c.site = site;
  const auto seconds = [&](std::vector<int64_t> counts) {
    c.replicas_at.counts = std::move(counts);
    return also(line_of(walls_of(c), "gradients_sent"), "seconds");
  };
  EXPECT_NEAR(seconds({8, 2}) / (2 * 7.0 / 8 * 2e9 / 450e9), 1, 1e-9);  // in the node, longer than between
  EXPECT_NE(line_of(walls_of(c), "gradients_sent").text.find(": 7.78 ms at 482 GB/s (tree)"),
            std::string::npos);
  c.tp = 8;  // stride 8: one replica a node
  EXPECT_NEAR(seconds({1, 2}) / (2 * 0.5 * 2e9 / 8 / 50e9), 1, 1e-9);
}

TEST(Walls, AllToAllAgainstTensorParallelSums) {
  WallsCase c = gpt(32, 4096);
  c.gpus = 64;
  c.tp = 8;
  c.ep = 8;
  c.top_k = 2;
  c.figures.near = 8;
  c.figures.bus = 400e9;
  c.figures.nic = 50e9;
  const auto all = walls_of(c);
  const double row = 2.0 * 2048 * 2 * 4096;  // 2 s b h
  const Worked& sums = line_of(all, "tensor_parallel_sent");
  const Worked& moved = line_of(all, "all_to_all_sent");
  EXPECT_DOUBLE_EQ(sums.value, 4 * 2 * 7.0 / 8 * row);
  EXPECT_DOUBLE_EQ(moved.value, 4 * 2 * 7.0 / 8 * row / 8);
  EXPECT_DOUBLE_EQ(line_of(all, "all_to_all_over_sums").value, 2 * 7.0 / 8 / (2 * 7));
  EXPECT_DOUBLE_EQ(also(sums, "seconds"), sums.value / 400e9);   // inside a node
  EXPECT_DOUBLE_EQ(also(moved, "seconds"), moved.value / 50e9);  // 64 ranks leave it
}

TEST(Walls, CheckpointCadence) {
  WallsCase c;
  c.gpus = 1024;
  c.mtbf_hours = 50000;
  c.save_s = 30;
  const auto all = walls_of(c);
  const double m = 50000 * 3600.0 / 1024, young = std::sqrt(2 * 30 * m);
  EXPECT_DOUBLE_EQ(line_of(all, "young_save_every_s").value, young);
  const double daly = young * (1 + std::sqrt(30 / (2 * m)) / 3 + 30 / (18 * m)) - 30;
  EXPECT_NEAR(line_of(all, "save_every_s").value, daly, 1e-9 * daly);
}

// All options together: the text has at most 25 lines. --all prints the other lines.
TEST(Walls, FitsAScreen) {
  WallsCase c = gpt(32, 4096);
  c.device = "H100";
  c.figures.bf16 = 989e12;
  c.figures.memory = 86e9;
  c.figures.bandwidth = 3.35e12;
  c.tokens = 3e11;
  c.gpus = 64;
  c.tp = 4;
  c.pp = 4;
  c.microbatches = 16;
  c.mtbf_hours = 50000;
  c.mfu = 0.4;
  c.reach = 0.5;
  c.price = 2;
  c.budget = 1e6;
  c.watts = 64e3;
  c.write_bandwidth = 1e9;
  const std::string text = walls_text(c, false, false), all = walls_text(c, false, true);
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 25);
  EXPECT_GT(std::count(all.begin(), all.end(), '\n'), 40);
  for (const char* what :
       {"on each, ZeRO 3", "64 devices at 40.0 %", "cost  ", "energy  ", "pipeline bubble"})
    EXPECT_NE(text.find(what), std::string::npos) << what << " in\n" << text;
  EXPECT_NE(text.find("--all prints"), std::string::npos);
  EXPECT_EQ(all.find("--all prints"), std::string::npos);
  EXPECT_NE(walls_text(c, true, false).find("      = "), std::string::npos);
}

// Storage and power of the cluster file: a write of 12 bytes per parameter at 10 MB/s, and 64 kW for the
// time.
TEST(Walls, StorageAndPower) {
  WallsCase c;
  c.parameters = c.active = 7.5e9;
  c.tokens = 1e11;
  c.gpus = 64;
  c.figures.bf16 = 989e12;
  c.mfu = 0.4;
  c.mtbf_hours = 50000;
  const auto without = walls_of(c);
  c.watts = 64e3;
  c.write_bandwidth = 1e7;
  const auto with = walls_of(c);
  const double write_s = 12 * 7.5e9 / 1e7;
  EXPECT_DOUBLE_EQ(line_of(with, "checkpoint_write_s").value, write_s);
  EXPECT_LT(line_of(without, "save_every_s").value, write_s);
  EXPECT_DOUBLE_EQ(line_of(with, "save_every_s").value, write_s);
  const double hours = 6 * 7.5e9 * 1e11 / (64 * 989e12 * 0.4) / 3600;
  EXPECT_NEAR(line_of(with, "energy_kwh").value, 64 * hours, 1e-6 * hours);
}

}  // namespace
}  // namespace trireme
