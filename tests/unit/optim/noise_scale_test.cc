#include "optim/noise_scale.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace trireme {
namespace {

// Gradients that are G plus Gaussian noise of a known covariance, as 8 parts of 4 sequences: B_simple is
// known, and found to 5 %.
TEST(NoiseScale, FindsAPlantedOne) {
  constexpr int64_t kDims = 600, kParts = 8, kEach = 4;
  double squared = 0, trace = 0;
  std::vector<double> g, deviation;
  for (int64_t i = 0; i < kDims; i++) {
    g.push_back(0.1 * normal(1, uint64_t(i)));
    deviation.push_back(0.05 + uniform(2, uint64_t(i)));
    squared += g.back() * g.back(), trace += deviation.back() * deviation.back();
  }
  NoiseScale noise;
  EXPECT_FALSE(noise.sequences());
  uint64_t draw = 0;
  for (int step = 0; step < 150; step++) {
    std::vector<double> mean(size_t(kDims), 0.0);
    double small = 0;
    for (int64_t part = 0; part < kParts; part++) {
      for (size_t i = 0; i < g.size(); i++) {
        const double x = g[i] + deviation[i] / std::sqrt(double(kEach)) * normal(3, draw++);
        small += x * x / double(kParts);
        mean[i] += x / double(kParts);
      }
    }
    double big = 0;
    for (double m : mean) big += m * m;
    noise.add({.small = small, .big = big, .small_sequences = kEach, .big_sequences = kParts * kEach});
  }
  const double want = trace / squared;
  EXPECT_GT(want, 20);
  ASSERT_TRUE(noise.sequences());
  EXPECT_NEAR(*noise.sequences(), want, 0.05 * want);
}

// The estimates are those of the formulas; a step that moved nothing counts for nothing.
TEST(NoiseScale, Formulas) {
  NoiseScale noise;
  noise.add({.small = 10, .big = 4, .small_sequences = 2, .big_sequences = 8});
  // |G|^2 = (8*4 - 2*10) / 6 = 2; tr = (10 - 4) / (1/2 - 1/8) = 16.
  EXPECT_DOUBLE_EQ(noise.sequences().value(), 8);
  const NoiseScaleState before = noise.state();
  noise.add({.small = std::nan(""), .big = std::nan(""), .small_sequences = 2, .big_sequences = 8});
  EXPECT_EQ(noise.state(), before);
  NoiseScale other;
  other.restore(before);
  noise.add({.small = 3, .big = 2, .small_sequences = 2, .big_sequences = 8});
  other.add({.small = 3, .big = 2, .small_sequences = 2, .big_sequences = 8});
  EXPECT_EQ(noise.state(), other.state());
  NoiseScale hidden;  // |G|^2 estimated below zero
  hidden.add({.small = 10, .big = 1, .small_sequences = 2, .big_sequences = 8});
  EXPECT_FALSE(hidden.sequences());
}

}  // namespace
}  // namespace trireme
