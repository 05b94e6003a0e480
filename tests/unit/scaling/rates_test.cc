#include "scaling/rates.h"

#include <gtest/gtest.h>

#include "planted.h"

namespace trireme::test {
namespace {

// Sweeps of five learning rates and five batches: lr* = 0.4 N^-0.2 D^0.05, batch* = 30 D^0.5.
std::vector<LossPoint> sweeps(double noise, uint64_t seed, bool over_lr) {
  std::vector<LossPoint> points;
  const uint64_t key = rng_key(seed, 0, "sweeps");
  for (const double n : {1e6, 4e6, 1.6e7})
    for (const double per : {10.0, 40.0, 160.0})
      for (int i = -2; i <= 2; i++) {
        LossPoint p{.parameters = n, .tokens = n * per};
        p.flops = 6 * p.parameters * p.tokens;
        const double lr = 0.4 * std::pow(n, -0.2) * std::pow(p.tokens, 0.05);
        const double batch = 30 * std::sqrt(p.tokens);
        const double x = i + 0.3;  // the best is between the tried ones
        p.lr = over_lr ? lr * std::exp2(x) : 1e-3;
        p.batch = over_lr ? 8192 : batch * std::exp2(x);
        p.loss = ChinchillaLaw{}.loss(n, p.tokens) + 0.02 * x * x + noise * normal(key, points.size());
        p.run = int(points.size());
        points.push_back(p);
      }
  return points;
}

TEST(BestRates, PlantedPowersAreRecovered) {
  for (const uint64_t seed : {1, 2, 3}) {
    const double noise = seed == 1 ? 0 : 1e-4;
    const RateLaw lr = fit_best_lr(sweeps(noise, seed, true), {.resamples = 50});
    ASSERT_EQ(lr.none, "");
    EXPECT_EQ(lr.cells, 9);
    EXPECT_NEAR(lr.n, -0.2, 0.01);
    EXPECT_NEAR(lr.d, 0.05, 0.01);
    EXPECT_NEAR(lr.at(4e6, 1e8) / (0.4 * std::pow(4e6, -0.2) * std::pow(1e8, 0.05)), 1, 0.02);
    const RateLaw batch = fit_best_batch(sweeps(noise, seed, false), {.resamples = 50});
    EXPECT_NEAR(batch.d, 0.5, 0.01);
    EXPECT_NEAR(batch.n, 0, 0.01);
    EXPECT_LE(batch.d_interval.low, batch.d);
    EXPECT_GE(batch.d_interval.high, batch.d);
  }
}

TEST(BestRates, NoneWithoutAMinimum) {
  std::vector<LossPoint> points = sweeps(0, 1, true);
  std::erase_if(points, [](const LossPoint& p) {
    return p.lr < 1.2 * 0.4 * std::pow(p.parameters, -0.2) * std::pow(p.tokens, 0.05);
  });
  EXPECT_NE(fit_best_lr(points, {.resamples = 0}).none, "");
  EXPECT_NE(fit_best_batch(points, {.resamples = 0}).none, "");
}

TEST(CriticalBatch, PlantedPowersAreRecovered) {
  std::vector<LossPoint> points;
  const uint64_t key = rng_key(1, 0, "critical");
  for (const double n : {1e6, 4e6, 1.6e7, 6.4e7})
    for (const double per : {5.0, 20.0, 80.0})
      for (int i = -2; i <= 2; i++) {
        LossPoint p{.parameters = n, .tokens = n * per};
        const double critical = 20 * std::pow(n, 0.1) * std::pow(p.tokens, 0.4);
        p.batch = critical * std::pow(4, i);
        p.loss = ChinchillaLaw{}.loss(n, p.tokens / (1 + p.batch / critical)) *
                 std::exp(1e-4 * normal(key, points.size()));
        p.run = int(points.size());
        points.push_back(p);
      }
  const CriticalBatch c = fit_critical_batch(points, {.resamples = 5});
  ASSERT_EQ(c.law.none, "");
  EXPECT_NEAR(c.law.d, 0.4, 0.02);
  EXPECT_NEAR(c.law.n, 0.1, 0.02);
  EXPECT_NEAR(c.law.at(4e6, 8e7) / (20 * std::pow(4e6, 0.1) * std::pow(8e7, 0.4)), 1, 0.05);
  EXPECT_NEAR(c.loss.beta, ChinchillaLaw{}.beta, 0.01);
  points.resize(8);
  EXPECT_NE(fit_critical_batch(points, {.resamples = 0}).law.none, "");
}

}  // namespace
}  // namespace trireme::test
