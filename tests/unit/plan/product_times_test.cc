// Products of any size from measured ones.
#include "measure/product_times.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "measure/speeds.h"

namespace trireme {
namespace {

double drawn_size(uint64_t n, double low, double high) {
  return low * std::pow(high / low, uniform(rng_key(7, 0, "product times test"), n));
}

// Arithmetic in panels of `panel` columns, bytes of the output and of one operand, a launch.
double true_seconds(double m, double n, double k, double panel) {
  return m * std::ceil(n / panel) * panel * k / 1e11 + m * n / 4e9 + n * k / 3e9 + 2e-6;
}

SpeedTable measured(uint64_t count, double panel, double noise) {
  SpeedTable t{.of = "matmul f32", .points = {}};
  for (uint64_t i = 0; i < count; i++) {
    const double m = std::round(drawn_size(10 * i, 10, 2000)),
                 n = 8 * std::round(drawn_size(10 * i + 1, 1, 300)),
                 k = std::round(drawn_size(10 * i + 2, 10, 2000)), by = drawn_size(10 * i + 3, 1, 1 + noise);
    t.points.push_back({m, n, 2 * m * n * k, true_seconds(m, n, k, panel) * by});
  }
  return t;
}

TEST(ProductTimes, AreExactAtTheirSizesAndNeverFasterThanTheFastest) {
  for (const uint64_t count : {3, 40}) {
    SpeedTable t{.of = "matmul f32", .points = {}};
    double fastest = 0;
    for (uint64_t i = 0; i < count; i++) {
      const double m = std::round(drawn_size(10 * i, 10, 4000)),
                   n = std::round(drawn_size(10 * i + 1, 10, 4000)), k = drawn_size(10 * i + 2, 10, 4000),
                   rate = drawn_size(10 * i + 3, 1e9, 2e11);
      t.points.push_back({m, n, 2 * m * n * k, 2 * m * n * k / rate});
      fastest = std::max(fastest, rate);
    }
    const ProductTimes times(t);
    for (const SpeedPoint& p : t.points)
      EXPECT_NEAR(times.seconds(p.rows, p.cols, p.work), p.seconds, 1e-9 * p.seconds);
    for (uint64_t i = 0; i < 300; i++) {
      const double m = drawn_size(5000 + 3 * i, 1, 1e6), n = drawn_size(5001 + 3 * i, 1, 1e6),
                   k = drawn_size(5002 + 3 * i, 1, 1e6), s = times.seconds(m, n, 2 * m * n * k);
      EXPECT_GE(s, 2 * m * n * k / fastest * (1 - 1e-9));
      EXPECT_TRUE(std::isfinite(s));
    }
  }
}

// Sizes that follow a law are foretold where none was measured, to within their noise: that a panel of 64
// columns is computed for 8 too, and that few rows leave the weights to be read.
TEST(ProductTimes, FindTheLawOfAllSizesAndThePanel) {
  for (const double panel : {1.0, 64.0}) {
    const SpeedTable table = measured(80, panel, 0);
    const ProductTimes exact(table), noisy(measured(80, panel, 0.1));
    double fastest = 0;
    for (const SpeedPoint& p : table.points) fastest = std::max(fastest, p.work / p.seconds);
    EXPECT_EQ(exact.panel(), panel);
    EXPECT_EQ(noisy.panel(), panel);
    for (uint64_t i = 0; i < 200; i++) {
      const double m = std::round(drawn_size(7000 + 3 * i, 1, 4000)),
                   n = 8 * std::round(drawn_size(7001 + 3 * i, 1, 600)),
                   k = std::round(drawn_size(7002 + 3 * i, 4, 4000)), s = true_seconds(m, n, k, panel);
      EXPECT_NEAR(exact.lawful_seconds(m, n, 2 * m * n * k), s, 1e-3 * s) << m << " " << n << " " << k;
      EXPECT_NEAR(exact.seconds(m, n, 2 * m * n * k), std::max(s, 2 * m * n * k / fastest), 1e-2 * s)
          << m << " " << n << " " << k;
      EXPECT_NEAR(noisy.seconds(m, n, 2 * m * n * k), 1.05 * s, 0.15 * s) << m << " " << n << " " << k;
    }
  }
}

// A few sizes that something held up, or that are quicker than others, do not bend it.
TEST(ProductTimes, TheLawIsNotThatOfOutliers) {
  SpeedTable t = measured(80, 64, 0);
  for (size_t i = 0; i < t.points.size(); i += 10) t.points[i].seconds *= i % 20 ? 3 : 0.3;
  const ProductTimes times(t);
  for (size_t i = 1; i < t.points.size(); i += 10) {
    const SpeedPoint& p = t.points[i];
    EXPECT_NEAR(times.lawful_seconds(p.rows, p.cols, p.work), p.seconds, 0.05 * p.seconds);
  }
}

// 2048 rows are nearer to 1024 than to 1900, which is no multiple of a large power of two.
TEST(ProductTimes, AlignedMatricesAreLikeAlignedOnes) {
  const auto at = [](double m, double rate) { return SpeedPoint{m, 100, 2e4 * m, 2e4 * m / rate}; };
  SpeedTable t{.of = "matmul f32", .points = {at(1900, 8e10), at(1024, 2e10), at(4096, 2e10)}};
  const auto rate = [&](double m) { return 2e4 * m / ProductTimes(t).seconds(m, 100, 2e4 * m); };
  EXPECT_LT(rate(2048), 2.2e10);
  EXPECT_GT(rate(1980), 7.8e10);
  t.of = "attention f32";  // whose sides are no rows of a matrix
  EXPECT_GT(rate(2048), 7.8e10);
}

// Few sizes have no law: between their rates all others lie.
TEST(ProductTimes, FewSizesKeepBetweenTheirRates) {
  SpeedTable t = measured(8, 64, 0);
  double slowest = 1e300;
  for (const SpeedPoint& p : t.points) slowest = std::min(slowest, p.work / p.seconds);
  const ProductTimes times(t);
  for (uint64_t i = 0; i < 100; i++) {
    const double m = drawn_size(9000 + 3 * i, 1, 1e6), n = drawn_size(9001 + 3 * i, 1, 1e6);
    EXPECT_LE(times.seconds(m, n, 200 * m * n), 200 * m * n / slowest * (1 + 1e-9));
  }
}

// A cluster file may hold any numbers in bounds (spec/calibration.cc): a price may be absurd, and price()
// refuses it, but it is a number.
TEST(ProductTimes, OfAnyTableAreNumbers) {
  uint64_t n = 100'000;
  const auto any = [&](double high) {
    const double v = drawn_size(n++, 1, high);
    return v < std::sqrt(high) / 1e3 ? 1 : v > high / 1e3 ? high : v;
  };
  for (int table = 0; table < 300; table++) {
    SpeedTable t{.of = table % 2 ? "matmul f32" : "attention f32", .points = {}};
    for (int i = 0; i < 1 + table % 40; i++)
      t.points.push_back({any(1e15), any(1e15), table % 7 ? any(1e21) : 0, 1e-12 * any(1e18)});
    const ProductTimes times(t);
    for (int i = 0; i < 20; i++) {
      const double s = times.seconds(any(1e9), any(1e9), i ? any(1e21) : 0);
      EXPECT_FALSE(std::isnan(s)) << table;
      EXPECT_GE(s, 0) << table;
    }
  }
}

// Where drills ran gelu behind its product, a product with gelu in it is priced as one without.
TEST(ProductTimes, GeluInProductsIsPricedByTheProduct) {
  SpeedTable t = measured(20, 16, 0);
  const SpeedPoint& p = t.points[7];
  const Piece gelu{
      .name = "matmul_gelu", .cost = {p.work, 0, 0}, .rows = int64_t(p.rows), .cols = int64_t(p.cols)};
  Calibration c;
  // A table as text has four digits of its seconds.
  c.ranks = 1, c.ops = Texts::of({speed_table_text(t)});
  ASSERT_TRUE(Speeds(c).op(gelu, "f32", 0));
  EXPECT_NEAR(*Speeds(c).op(gelu, "f32", 0) / p.seconds, 1, 1e-3);
  EXPECT_FALSE(Speeds(c).op(gelu, "bf16", 0));
  t.of = "matmul_gelu f32";
  for (SpeedPoint& point : t.points) point.seconds *= 1.25;
  c.ops = Texts::of({c.ops.list[0], speed_table_text(t)});
  EXPECT_NEAR(*Speeds(c).op(gelu, "f32", 0) / p.seconds, 1, 1e-3);  // t's own, a quarter more
}

}  // namespace
}  // namespace trireme
