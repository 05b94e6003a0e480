// Keys of a user's row: each moves the forecast the right way, and an unknown key is an error.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "cost/step_memory.h"
#include "published/score_fit.h"
#include "score_row.h"

namespace trireme {
namespace {

using test::read_one, test::TestJson;

// A source that the catalog does not know: 13 B on 64 A100 with tp 4, pp 2.
TestJson unknown_source_row() {
  TestJson row = test::row_of("a company's own runs", "A100-SXM-80GB", 64);
  row["layout"]["dp"] = 8;
  row["layout"]["zero"] = 1;
  row["layout"]["recompute"] = "none";
  row["layout"]["micro_batch"] = 1;
  row["layout"]["sequence_parallel"] = true;
  row["layout"]["grads"] = "f32";
  return row;
}

struct StatedForecast {
  double seconds = 0, bytes = 0;
};
StatedForecast forecast_stated(const TestJson& row) {
  const MeasuredRow r = read_one(row);
  EXPECT_EQ(r.skipped, "");
  const FitValues v = shipped_constants().of(r);
  return {forecast_of(r, v).middle, memory_of(r, v).middle};
}

// A key, its value, and the change of seconds and bytes: -1 fewer, 0 the same, 1 more.
struct MovedKey {
  const char *name, *where;
  TestJson value;
  int seconds, bytes;
};

class StatedKeys : public testing::TestWithParam<MovedKey> {};

TEST_P(StatedKeys, MoveTheForecast) {
  const auto& [name, where, value, seconds, bytes] = GetParam();
  TestJson row = unknown_source_row();
  const StatedForecast before = forecast_stated(row);
  row[TestJson::json_pointer(where)] = value;
  const StatedForecast after = forecast_stated(row);
  const auto way = [](double b, double a) { return std::abs(a / b - 1) < 1e-9 ? 0 : a > b ? 1 : -1; };
  EXPECT_EQ(way(before.seconds, after.seconds), seconds) << before.seconds << " " << after.seconds;
  EXPECT_EQ(way(before.bytes, after.bytes), bytes) << before.bytes << " " << after.bytes;
}

const std::vector<MovedKey> kMoved = {{"WholeSequences", "/layout/sequence_parallel", false, 1, 1},
                                      {"NormsOneByOne", "/layout/norms", "unfused", 1, 1},
                                      {"UnfusedAttention", "/layout/attention", "unfused", 1, 1},
                                      {"OldAttention", "/layout/attention", "flash 1", 1, 0},
                                      {"ShortGradients", "/layout/grads", "bf16", -1, -1},
                                      {"ShortMoments", "/layout/moments", "bf16", 0, -1},
                                      {"ZeroGroups", "/layout/zero_group", 2, 1, 1},
                                      {"SlowNetwork", "/cluster/network_gbits", 100, 1, 0},
                                      {"FastNetwork", "/cluster/network_gbits", 6400, -1, 0},
                                      {"LateNetwork", "/cluster/network_latency_us", 50, 1, 0},
                                      {"SlowText", "/cluster/interconnect", "4x100 Gb/s RoCE per node", 1, 0},
                                      {"Recompute", "/layout/recompute", "full", 1, -1}};
INSTANTIATE_TEST_SUITE_P(All, StatedKeys, testing::ValuesIn(kMoved),
                         [](const auto& m) { return std::string(m.param.name); });

TEST(ScoreStated, ANodesBandwidthByHand) {
  EXPECT_DOUBLE_EQ(node_bandwidth("InfiniBand 8x200 Gb/s (assumed)", 8), 200e9);
  EXPECT_DOUBLE_EQ(node_bandwidth("NVLink3 + 4x100Gb/s Omni-Path per node", 8), 50e9);
  EXPECT_DOUBLE_EQ(node_bandwidth("400 Gb/s a node", 8), 50e9);
  EXPECT_DOUBLE_EQ(node_bandwidth("NVLink + 400Gb/s RDMA per GPU", 4), 200e9);
  EXPECT_DOUBLE_EQ(node_bandwidth("NVSwitch 600GB/s", 8), 0);
  EXPECT_DOUBLE_EQ(node_bandwidth("Gb/s", 8), 0);
  EXPECT_DOUBLE_EQ(node_bandwidth("", 8), 0);
}

TEST(ScoreStated, AnUnknownKeyNamesTheNearest) {
  const auto message = [](const char* where, TestJson value) {
    TestJson row = unknown_source_row();
    row[TestJson::json_pointer(where)] = std::move(value);
    try {
      read_one(row);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(message("/layout/sequence_paralel", false).find("nearest known is sequence_parallel"),
            std::string::npos);
  EXPECT_NE(message("/cluster/network_gbit", 100).find("nearest known is network_gbits"), std::string::npos);
  EXPECT_NE(message("/model/hiden", 100).find("nearest known is hidden"), std::string::npos);
  EXPECT_NE(message("/result/step_time", 1).find("nearest known is step_time_s"), std::string::npos);
  EXPECT_EQ(message("/result/loss_at_the_end", 1), "");  // another result moves no forecast
}

TEST(ScoreStated, WrongWordsAreNamed) {
  for (const auto& [where, word] : {std::pair{"/layout/norms", "fast"},
                                    {"/layout/attention", "flash 9"},
                                    {"/layout/grads", "int4"},
                                    {"/layout/moments", "int4"}}) {
    TestJson row = unknown_source_row();
    row[TestJson::json_pointer(where)] = word;
    EXPECT_NE(read_one(row).skipped.find(word), std::string::npos) << where;
  }
}

// Bytes of a block's activations without sequence parallelism, by hand (Korthikanti et al. 2022: 10 + 24 / t
// of s b h where f = 4 h), and 8 h more of norms in single operations.
TEST(ScoreStated, ActivationsOfWholeSequencesByHand) {
  StepCase c = read_one(unknown_source_row()).cases[0];
  c.keeping = {}, c.sequence = false, c.micro = 3;
  const double sbh = 3. * 2048 * 5120;
  EXPECT_NEAR(layer_activations(c, false) / (sbh * (10 + 24. / 4)), 1, 1e-12);
  c.fused_norms = false;
  EXPECT_NEAR(layer_activations(c, false) / (sbh * (18 + 24. / 4)), 1, 1e-12);
  c.sequence = true;
  EXPECT_NEAR(layer_activations(c, false) / (sbh * (34 + 8) / 4), 1, 1e-12);
}

// Elementwise traffic of norms in single operations: 64 bytes of a hidden unit more forward, 1.7 times that
// backward, at 0.8 of the bandwidth.
TEST(ScoreStated, UnfusedNormsByHand) {
  TestJson row = unknown_source_row();
  row["layout"]["pp"] = 1;
  row["layout"]["dp"] = 16;
  const MeasuredRow r = read_one(row);
  FitValues v{};
  v.fill(1);
  v[size_t(Fit::host)] = v[size_t(Fit::step)] = v[size_t(Fit::jitter)] = 0;
  StepCase fused = r.cases[0], single = fused;
  single.fused_norms = false;
  const double more =
      step_time(single, r.figures, v).elementwise - step_time(fused, r.figures, v).elementwise;
  const double layers = 40, microbatches = 6, rows = 2048;
  const double by_hand = layers * microbatches * 2.7 * rows * 5120 * 64 / 4 / (0.8 * 2.039e12);
  EXPECT_NEAR(more / by_hand, 1, 1e-9);
}

// FSDP: gathers and sums that take x of the compute are waited for by (1 + x^3)^(1/3) - 1 of it.
TEST(ScoreStated, FsdpHidesBehindCompute) {
  TestJson row = unknown_source_row();
  row["layout"]["tp"] = row["layout"]["pp"] = 1;
  row["layout"]["dp"] = 64;
  row["layout"]["zero"] = 3;
  row["layout"]["micro_batch"] = 1;
  row["layout"]["global_batch"] = 64;
  const MeasuredRow r = read_one(row);
  FitValues v{};
  v.fill(1);
  v[size_t(Fit::host)] = v[size_t(Fit::step)] = v[size_t(Fit::jitter)] = v[size_t(Fit::ring)] = 0;
  DeviceFigures d = r.figures;
  const StepCase& c = r.cases[0];
  const StepSeconds s = step_time(c, d, v);
  const double compute = s.products + s.attention + s.elementwise + s.head;
  const double parameters = step_parts(c, d, v).dense;
  const double moved = parameters * (2 * 2 + c.grad_bytes) * 63 / 64 / (d.nic * 8 * 0.85);
  EXPECT_NEAR(s.gradients, std::cbrt(std::pow(compute, 3) + std::pow(moved, 3)) - compute, 1e-9 * compute);
  d.nic *= 1000;
  d.bus *= 1000;  // hardly anything is waited for
  EXPECT_LT(step_time(c, d, v).gradients, 1e-3 * compute);
}

}  // namespace
}  // namespace trireme
