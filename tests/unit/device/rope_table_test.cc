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
  try {
    rope_scaling_from_name("yarn");
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    EXPECT_STREQ(e.what(), "rope_scaling.type = 'yarn' must be none, linear or llama3");
  }
}

}  // namespace
}  // namespace trireme
