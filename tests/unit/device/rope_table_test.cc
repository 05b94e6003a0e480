#include "device/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"

namespace trireme {
namespace {

// From transformers 5.23.0 with PyTorch 2.15.0: inv_freq of Llama 3.1's rope (head_dim 128, theta 500000,
// factor 8, low 1, high 4, 8192 positions). 29 to 34 are blended, those after them divided, those before
// kept.
TEST(RopeTable, Llama3FrequenciesAreTransformersBitForBit) {
  RopeAngles a{.theta = 500000, .scaling = RopeStretch::llama3, .factor = 8};
  std::vector<float> f(64);
  rope_frequencies(a, 128, f);
  EXPECT_EQ(f[0], 0x1p+0f);
  EXPECT_EQ(f[1], 0x1.a11582p-1f);
  EXPECT_EQ(f[20], 0x1.0f5386p-6f);
  EXPECT_EQ(f[28], 0x1.a4ee4p-9f);
  EXPECT_EQ(f[29], 0x1.1bfa0cp-9f);
  EXPECT_EQ(f[30], 0x1.67a23ap-10f);
  EXPECT_EQ(f[35], 0x1.90d10cp-14f);
  EXPECT_EQ(f[40], 0x1.1f91fp-15f);
  EXPECT_EQ(f[63], 0x1.4985fep-22f);
}

// The same of its yarn: DeepSeek-V2's numbers (64 columns, 4,096 positions stretched 40 times; 10 to 22 are
// blended), Qwen2.5's (default betas), and a small one.
TEST(RopeTable, YarnFrequenciesAreTransformersBitForBit) {
  RopeAngles a{.theta = 10000, .scaling = RopeStretch::yarn, .factor = 40, .original_max_positions = 4096};
  std::vector<float> f(32);
  rope_frequencies(a, 64, f);
  EXPECT_EQ(f[0], 0x1p+0f);
  EXPECT_EQ(f[9], 0x1.33281ap-4f);
  EXPECT_EQ(f[11], 0x1.3f8b74p-5f);
  EXPECT_EQ(f[14], 0x1.97e506p-7f);
  EXPECT_EQ(f[17], 0x1.d2e0ccp-9f);
  EXPECT_EQ(f[20], 0x1.9e7c6ep-11f);
  EXPECT_EQ(f[22], 0x1.74eea6p-13f);
  EXPECT_EQ(f[23], 0x1.17a8e2p-15f);
  EXPECT_EQ(f[31], 0x1.bf749ep-19f);
  f.resize(8);
  a = {.theta = 1e6, .scaling = RopeStretch::yarn, .factor = 4, .original_max_positions = 32768};
  rope_frequencies(a, 16, f);
  EXPECT_EQ(f, (std::vector<float>{0x1p+0f, 0x1.6c310ep-3f, 0x1.030dc6p-5f, 0x1.1466eap-8f, 0x1.0624dep-11f,
                                   0x1.74eea6p-15f, 0x1.094564p-17f, 0x1.796182p-20f}));
  f.resize(6);
  a = {.theta = 100, .scaling = RopeStretch::yarn, .factor = 4, .original_max_positions = 64, .beta_fast = 4};
  rope_frequencies(a, 12, f);
  EXPECT_EQ(f, (std::vector<float>{0x1p+0f, 0x1.db4c78p-2f, 0x1.4aebcep-3f, 0x1.999998p-5f, 0x1.7c3d2ap-7f,
                                   0x1.60fb8cp-8f}));
}

TEST(RopeTable, YarnSharpens) {
  const YarnFactors lite = yarn_factors(40, 0.707, 0.707, 0);
  EXPECT_EQ(lite.amplitude, 1);
  EXPECT_NEAR(lite.scores, std::pow(1 + 0.0707 * std::log(40.0), 2), 1e-12);
  EXPECT_NEAR(yarn_factors(4, 0, 0, 0).amplitude, 1.138629436111989, 1e-12);
  EXPECT_EQ(yarn_factors(4, 0, 0, 0).scores, 1);
  EXPECT_NEAR(yarn_factors(4, 0.707, 1, 0).amplitude, 0.964326914892074, 1e-12);
  EXPECT_EQ(yarn_factors(4, 0.707, 1, 1.5).amplitude, 1.5);
  EXPECT_EQ(yarn_factors(1, 1, 1, 0).scores, 1);
  std::vector<float> cos(2 * 3), sin(2 * 3), twice(2 * 3), sines(2 * 3);
  RopeAngles a{.theta = 10};
  rope_table(a, 2, 6, cos, sin);
  a.amplitude = 2;
  rope_table(a, 2, 6, twice, sines);
  for (size_t i = 0; i < 6; i++) EXPECT_TRUE(twice[i] == 2 * cos[i] && sines[i] == 2 * sin[i]);
}

TEST(RopeTable, PlainFrequenciesFollowTheFormulaAndLinearDividesThem) {
  std::vector<float> plain(24), linear(24);
  rope_frequencies({.theta = 10000}, 48, plain);
  rope_frequencies({.theta = 10000, .scaling = RopeStretch::linear, .factor = 3}, 48, linear);
  for (size_t i = 0; i < 24; i++) {
    const double want = std::pow(10000.0, -2.0 * double(i) / 48);
    EXPECT_NEAR(plain[i] / want, 1, 1e-6) << i;
    EXPECT_EQ(linear[i], plain[i] / 3) << i;
  }
}

// An angle is the f32 product of position and frequency: at position 4095 that is another number than the
// exact product, and cos and sin are of the rounded one.
TEST(RopeTable, TakesCosineAndSineOfTheRoundedAngle) {
  constexpr int64_t positions = 4096, half = 3;
  std::vector<float> f(half), cos(positions * half), sin(positions * half);
  RopeAngles a{.theta = 10000};
  rope_frequencies(a, 2 * half, f);
  rope_table(a, positions, 2 * half, cos, sin);
  int other = 0;
  for (int64_t p = 0; p < positions; p++)
    for (int64_t i = 0; i < half; i++) {
      const float angle = float(p) * f[size_t(i)];
      EXPECT_EQ(cos[size_t(p * half + i)], float(std::cos(double(angle)))) << p << " " << i;
      EXPECT_EQ(sin[size_t(p * half + i)], float(std::sin(double(angle)))) << p << " " << i;
      other += float(std::sin(double(p) * double(f[size_t(i)]))) != sin[size_t(p * half + i)];
    }
  EXPECT_GT(other, 100);
}

TEST(RopeTable, NamesAreTranslatedAndOthersRefused) {
  EXPECT_EQ(rope_scaling_from_name("none"), RopeStretch::none);
  EXPECT_EQ(rope_scaling_from_name("linear"), RopeStretch::linear);
  EXPECT_EQ(rope_scaling_from_name("llama3"), RopeStretch::llama3);
  EXPECT_EQ(rope_scaling_from_name("yarn"), RopeStretch::yarn);
  try {
    rope_scaling_from_name("longrope");
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    EXPECT_STREQ(e.what(), "rope_scaling.type = 'longrope' must be none, linear, llama3 or yarn");
  }
}

}  // namespace
}  // namespace trireme
