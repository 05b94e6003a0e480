// Prices of single operations against published measurements: curve by curve as forecasts use them.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "catalog/catalog.h"
#include "cost/device_curves.h"
#include "published/score_curves.h"
#include "source_dir.h"

namespace trireme {
namespace {

CurveScore scored(const std::string& json) {
  return score_curves(json, "ops.json");
}
CurveScore shipped_file() {
  return score_curves(read_text(test::source_dir() / "data/published_microbench.json"), "curves.json");
}
const DeviceFigures& figures_of(const char* device) {
  return shipped_catalog().device_named(device)->figures;
}

// A kernel's own curve is within the bar; other kernels, other machines and the best of a search are not.
TEST(ScoreOps, KernelsAreWithinTheBar) {
  std::map<std::string, Curve> by_name;
  for (const Curve& c : shipped_file().curves)
    if (!c.constants.empty()) by_name[c.name + " " + c.where] = c;
  EXPECT_EQ(by_name.size(), 28u);
  for (const char* name :
       {"attention, FlashAttention 2, both passes A100-80GB",
        "attention, FlashAttention 1, both passes A100-80GB", "attention, FlashAttention 2, both passes H100",
        "attention, FlashAttention 2, forward H100", "attention, FlashAttention 2, backward H100",
        "attention, cuDNN, forward H100", "attention, cuDNN, backward H100",
        "products in fp8, 4,096 rows H800", "experts' products in fp8 H800"}) {
    ASSERT_TRUE(by_name.contains(name)) << name;
    EXPECT_LE(by_name[name].mean_error(), kCurveBar) << name;
  }
  for (const auto& [name, c] : by_name)
    if (c.mean_error() > kCurveBar) {
      EXPECT_FALSE(c.note.empty()) << name << " says nothing of why";
    }
}

TEST(ScoreOps, AttentionByHand) {
  const CurveScore s = scored(
      R"({"flash_attention3_h100_fwd_fp16_tflops": {"seqlens": [1024, 4096],
          "cudnn_causal_d128": [400, null], "cudnn_noncausal_d64": [null, 300]}})");
  ASSERT_EQ(s.curves.size(), 1u);
  ASSERT_EQ(s.curves[0].points.size(), 2u);
  // Forward: 3.5 FLOPs of both passes at the rate, of which it takes 1 of 3.84.
  const double rate = figures_of("H100").attention / 1e12 * 3.84 / 3.5;
  EXPECT_NEAR(s.curves[0].points[0].predicted, rate * 1024 / (1024 + 365), 1e-6);
  EXPECT_NEAR(s.curves[0].points[1].predicted, 0.83 * rate * 8192 / (8192 + 365), 1e-6);
  EXPECT_EQ(s.curves[0].points[0].low, 400);
}

// The device's fastest is FlashAttention 2 where nothing is faster.
TEST(ScoreOps, FastestKernelOfADevice) {
  EXPECT_EQ(attention_curve(figures_of("A100-80GB"), AttentionKind::flash).name, "FlashAttention 2");
  EXPECT_EQ(attention_curve(figures_of("H100"), AttentionKind::flash).name, "cuDNN");
  EXPECT_EQ(attention_curve(figures_of("B200"), AttentionKind::flash).name, "cuDNN");
  EXPECT_EQ(attention_peak(figures_of("B200"), AttentionKind::flash2), figures_of("B200").attention);
}

// What a product of 8 bits takes is what its arithmetic and its bytes say: a depth of twice K0 reaches half.
TEST(ScoreOps, ProductsByHand) {
  DeviceFigures d{.bandwidth = 1e12, .k0 = 300, .m0 = 0, .n0 = 0};
  EXPECT_NEAR(product_seconds(d, 1e4, 1e4, 300, {1e12, 2}), 2 * 1e4 * 1e4 * 300 / 0.5e12, 1e-9);
  EXPECT_NEAR(product_seconds(d, 1e4, 1e4, 600, {1e12, 1}), 2 * 1e4 * 1e4 * 600 / 0.5e12, 1e-9);
  const double bytes = 1 * (100. * 50 + 50. * 100) + 2 * 100. * 100;
  EXPECT_NEAR(product_seconds(d, 100, 100, 50, {1e18, 1}), bytes / 0.85e12, 1e-15);
  const CurveScore s = scored(R"({"deepgemm_h800_fp8_tflops": {"grouped": [[4, 8192, 4096, 7168, 1297]]}})");
  ASSERT_EQ(s.curves.size(), 1u);
  EXPECT_EQ(s.curves[0].points.at(0).at, "4 of 8192 x 4096 x 7168");
  EXPECT_EQ(s.curves[0].points[0].way, "compute");
}

// 100 units: 100 tiles of 256 x 128 fill them, 101 leave 99 of the second wave's idle; a product of 128
// rows has no full tile of 256.
TEST(ScoreOps, WavesByHand) {
  EXPECT_DOUBLE_EQ(filled_waves(100, 2560, 1280, 1), 1);
  EXPECT_DOUBLE_EQ(filled_waves(100, 256 * 101, 128, 1), 0.8 * 404 / 500);  // of 128 x 64
  EXPECT_DOUBLE_EQ(filled_waves(100, 128, 256 * 100, 1), 1);
  EXPECT_DOUBLE_EQ(filled_waves(100, 64, 256 * 100, 1), 0.5);
  EXPECT_DOUBLE_EQ(filled_waves(100, 256, 128, 100), 1);  // many small ones side by side
  EXPECT_DOUBLE_EQ(filled_waves(1000, 256, 128, 1), 4 * 0.8 * 8192 / (1000 * 8192.0));
  const DeviceFigures d{.bandwidth = 1e18, .k0 = 0, .units = 100};
  EXPECT_DOUBLE_EQ(product_seconds(d, 64, 25600, 64, {1e12, 2}), 2 * 64.0 * 25600 * 64 / 0.5e12);
}

// Cutting a product in two never makes both together faster: bounds of the search need that.
TEST(ScoreOps, HalvesTakeNoLessThanTheWhole) {
  const DeviceFigures d = figures_of("A100-80GB");
  for (uint64_t i = 0; i < 2000; ++i) {
    const auto side = [&](uint64_t what) { return 2 * double(1 + int(uniform(7, 3 * i + what) * 9000)); };
    const double m = side(0), n = side(1), k = side(2);
    const ProductRate rate{1e14, 2};
    EXPECT_LE(product_seconds(d, m, n, k, rate), 2 * product_seconds(d, m / 2, n, k, rate) * (1 + 1e-12));
    EXPECT_LE(product_seconds(d, m, n, k, rate), 2 * product_seconds(d, m, n / 2, k, rate) * (1 + 1e-12));
  }
}

TEST(ScoreOps, WhatCannotBeReadIsNamed) {
  const auto refusal = [](const std::string& json) -> std::string {
    try {
      scored(json);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  for (const char* wrong :
       {R"({"mamf_bf16_tflops": {"B200": [1745, 2250]}})",
        R"({"mamf_bf16_tflops": {"B200": [1745, 2250, "0x1x1"]}})",
        R"({"mamf_bf16_tflops": {"B200": ["x", 2250, "9x9x9"]}})",
        R"({"mamf_fp8_tflops": {"B200": [1, 2, "9x9"]}})",
        R"({"deepgemm_h800_fp8_tflops": {"products": [[1, 2, 3]]}})",
        R"({"deepgemm_h800_fp8_tflops": {"products": [[1, 2, 3, -4]]}})",
        R"({"deepgemm_h800_fp8_tflops": {"products": 4}})", R"({"simumax_b200_shares": {"bandwidth": 0}})",
        R"({"flash_attention2_h100_fwd_bwd_tflops": {"seqlens": [512], "causal_d64": [1, 2]}})"}) {
    const std::string said = refusal(wrong);
    EXPECT_NE(said.find("ops.json"), std::string::npos) << wrong;
    EXPECT_NE(said.find("right is"), std::string::npos) << wrong << ": " << said;
  }
  const CurveScore s = scored(R"({"mamf_bf16_tflops": {"Abacus": [1, 2, "9x9x9"]}})");
  ASSERT_EQ(s.left_out.size(), 1u);
  EXPECT_NE(s.left_out[0].name.find("Abacus"), std::string::npos);
}

// docs/score.md's table of curves has every curve of operations, with what the command prints of it.
TEST(ScoreOps, TheTableIsWhatScoreSays) {
  std::map<std::string, std::string> rows;  // by curve and device
  std::istringstream page(read_text(test::source_dir() / "docs/score.md"));
  for (std::string line; std::getline(page, line);) {
    const size_t second = line.find(" | ", 2),
                 third = second == line.npos ? second : line.find(" | ", second + 3);
    if (line.starts_with("| ") && third != line.npos) rows[line.substr(2, third - 2)] = line;
  }
  size_t found = 0;
  for (const Curve& c : shipped_file().curves) {
    if (c.constants.empty()) continue;
    const auto row = rows.find(c.name + " | " + c.where);
    ASSERT_NE(row, rows.end()) << c.name << " | " << c.where;
    EXPECT_NE(row->second.find(" | " + c.constants + " | "), std::string::npos) << c.constants << "\n"
                                                                                << row->second;
    std::ostringstream errors;
    errors.setf(std::ios::fixed), errors.precision(1);
    errors << " | " << c.points.size() << " | " << c.mean_error() << " | " << std::showpos << c.worst_error()
           << " |";
    EXPECT_TRUE(row->second.ends_with(errors.str())) << errors.str() << "\n" << row->second;
    found++;
  }
  EXPECT_EQ(found, 28u);
}

}  // namespace
}  // namespace trireme
