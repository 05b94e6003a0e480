#include "scaling/law.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "planted.h"

namespace trireme::test {
namespace {

constexpr ChinchillaLaw kHoffmann{1.6934, 406.4, 410.7, 0.3392, 0.2849};
constexpr ChinchillaLaw kBesiroglu{};

double off(double found, double planted) {
  return std::abs(found / planted - 1);
}

TEST(ParametricFit, RecoversPlantedConstants) {
  for (const ChinchillaLaw& law : {kHoffmann, kBesiroglu}) {
    for (const double noise : {0.0, 1e-4, 2e-4}) {
      for (const uint64_t seed : {1, 2}) {
        const ParametricFit f = fit_parametric(planted_runs(law, noise, seed, 8, 15), {.resamples = 0});
        SCOPED_TRACE(fmt::format("noise {} seed {}", noise, seed));
        EXPECT_LT(off(f.law.E, law.E), 0.02);
        EXPECT_LT(off(f.law.A, law.A), 0.02);
        EXPECT_LT(off(f.law.B, law.B), 0.02);
        EXPECT_LT(off(f.law.alpha, law.alpha), 0.02);
        EXPECT_LT(off(f.law.beta, law.beta), 0.02);
        EXPECT_TRUE(f.fit.converged);
      }
    }
  }
}

// At the noise of real runs the exponents and E stay within 2 %; A and B are exponentials of them.
TEST(ParametricFit, RecoversExponentsUnderNoise) {
  for (const uint64_t seed : {1, 2, 3}) {
    const ParametricFit f = fit_parametric(planted_runs(kBesiroglu, 1e-3, seed, 8, 15), {.resamples = 0});
    EXPECT_LT(off(f.law.E, kBesiroglu.E), 0.02);
    EXPECT_LT(off(f.law.alpha, kBesiroglu.alpha), 0.02);
    EXPECT_LT(off(f.law.beta, kBesiroglu.beta), 0.02);
    EXPECT_NEAR(f.spread, 1e-3, 2e-4);
  }
}

// The bootstrap's 90 % interval of the best size's exponent contains the planted one about as often.
TEST(ParametricFit, IntervalsCover) {
  const double planted = kBesiroglu.beta / (kBesiroglu.alpha + kBesiroglu.beta);
  int inside = 0;
  constexpr int kTries = 12;
  for (int seed = 0; seed < kTries; seed++) {
    const ParametricFit f =
        fit_parametric(planted_runs(kBesiroglu, 3e-3, uint64_t(seed), 5, 7), {.resamples = 30, .seed = 7});
    const Interval i = f.of([](const ChinchillaLaw& l) { return l.beta / (l.alpha + l.beta); });
    inside += i.low <= planted && planted <= i.high;
    EXPECT_LT(i.high - i.low, 0.2);
  }
  EXPECT_GE(inside, kTries * 7 / 10);
}

// The 90 % interval of a run with four times the largest FLOPs contains such runs about as often. It comes
// from residuals; points of one run are not independent, and there whole runs are resampled.
TEST(ParametricFit, ForecastsOfRunsCover) {
  int inside = 0;
  double width = 0, by_runs = 0;
  constexpr int kTries = 20;
  for (int seed = 0; seed < kTries; seed++) {
    std::vector<LossPoint> points = planted_runs(kBesiroglu, 4e-3, uint64_t(seed), 4, 4);
    const LossPoint further = planted_runs(kBesiroglu, 4e-3, uint64_t(seed) + 100, 4, 5).back();
    ParametricFit f = fit_parametric(points, {.resamples = 40, .seed = 7});
    EXPECT_EQ(f.redrawn.size(), 40u);
    const Interval i = f.loss_of_run(further.parameters, further.tokens);
    inside += i.low <= further.loss && further.loss <= i.high;
    EXPECT_LT(i.high - i.low, 0.1 * further.loss);
    width += i.high - i.low;
    f.redrawn.clear();
    const Interval all = f.loss_of_run(further.parameters, further.tokens);
    by_runs += all.high - all.low;
  }
  EXPECT_GE(inside, kTries * 3 / 4);
  EXPECT_LT(width, 0.95 * by_runs);  // which leaves out whole budgets or sizes now and then
  std::vector<LossPoint> curves = planted_runs(kBesiroglu, 4e-3, 1, 4, 4);
  for (LossPoint& p : curves) p.run /= 2;
  const ParametricFit f = fit_parametric(curves, {.resamples = 10});
  EXPECT_TRUE(f.redrawn.empty());
  EXPECT_EQ(f.resampled.size(), 10u);
}

TEST(ParametricFit, ResamplesWholeRuns) {
  const std::vector<int> runs = {0, 0, 0, 1, 1, 2};
  const std::vector<double> w = resampled(runs, 3, 5);
  EXPECT_EQ(w[0], w[1]);
  EXPECT_EQ(w[0], w[2]);
  EXPECT_EQ(w[3], w[4]);
  EXPECT_EQ(w[0] + w[3] + w[5], 3);
}

TEST(ParametricFit, RefusesTooFew) {
  std::vector<LossPoint> points = planted_runs(kBesiroglu, 0, 1, 1, 5);
  EXPECT_THROW(fit_parametric(points, {}), Error);
  points = planted_runs(kBesiroglu, 0, 1, 2, 4);
  for (LossPoint& p : points) p.parameters = 1e8;
  EXPECT_THROW(fit_parametric(points, {}), Error);
}

TEST(Envelope, RecoversThePlantedExponent) {
  for (const ChinchillaLaw& law : {kHoffmann, kBesiroglu}) {
    std::vector<LossPoint> points;
    for (int n = 0; n < 24; n++)  // curves of training, from 1 to 1,000 tokens per parameter
      for (int i = 0; i < 40; i++) {
        LossPoint p;
        p.parameters = 1e7 * std::pow(1.4, n);
        p.tokens = p.parameters * std::pow(10, 3.0 * i / 39);
        p.flops = 6 * p.parameters * p.tokens;
        p.loss = law.loss(p.parameters, p.tokens);
        p.run = n;
        points.push_back(p);
      }
    const FrontierFit f = fit_envelope(points, {.resamples = 20});
    ASSERT_EQ(f.none, "");
    EXPECT_LT(off(f.a, law.beta / (law.alpha + law.beta)), 0.02);
    EXPECT_LT(f.interval.low, f.interval.high);
    EXPECT_LT(off(f.parameters(1e20), chinchilla_optimum(law, 1e20).parameters), 0.1);
  }
}

TEST(IsoFlops, RecoverThePlantedExponent) {
  for (const ChinchillaLaw& law : {kHoffmann, kBesiroglu}) {
    const std::vector<LossPoint> points = planted_runs(law, 0, 1);
    const FrontierFit f = fit_isoflops(points, {.resamples = 20});
    ASSERT_EQ(f.none, "");
    EXPECT_EQ(f.points.size(), 6u);
    EXPECT_LT(off(f.a, law.beta / (law.alpha + law.beta)), 0.02);
  }
}

// Where A = B and alpha = beta all is symmetric, and the three approaches agree.
TEST(Approaches, AgreeOnASymmetricLaw) {
  const ChinchillaLaw law{1.7, 400, 400, 0.3, 0.3};
  const std::vector<LossPoint> points = planted_runs(law, 0, 1, 8, 13);
  std::vector<LossPoint> curves;
  for (int n = 0; n < 17; n++)
    for (int i = 0; i < 30; i++) {
      LossPoint p{.parameters = 1e7 * std::pow(1.5, n)};
      p.tokens = 0.03 * p.parameters * std::pow(10, 3.0 * i / 29);
      p.flops = 6 * p.parameters * p.tokens;
      p.loss = law.loss(p.parameters, p.tokens);
      p.run = n;
      curves.push_back(p);
    }
  EXPECT_NEAR(fit_envelope(curves, {.resamples = 0}).a, 0.5, 0.01);
  EXPECT_NEAR(fit_isoflops(points, {.resamples = 0}).a, 0.5, 1e-3);
  const ParametricFit f = fit_parametric(points, {.resamples = 0});
  EXPECT_NEAR(f.law.beta / (f.law.alpha + f.law.beta), 0.5, 1e-3);
}

TEST(IsoFlops, AMinimumBeyondTheSizesIsNone) {
  std::vector<LossPoint> points = planted_runs(kBesiroglu, 0, 1);
  std::erase_if(points, [](const LossPoint& p) {
    return p.parameters < 1.1 * chinchilla_optimum(kBesiroglu, p.flops).parameters;
  });
  EXPECT_NE(fit_isoflops(points, {.resamples = 0}).none, "");
}

TEST(Chinchilla, ClosedFormIsTheMinimum) {
  for (const double flops : {1e18, 5.8e23}) {
    const Allocation best = chinchilla_optimum(kBesiroglu, flops);
    const double at = kBesiroglu.loss(best.parameters, best.tokens);
    EXPECT_NEAR(6 * best.parameters * best.tokens / flops, 1, 1e-12);
    for (const double times : {0.98, 1.02})
      EXPECT_LT(at, kBesiroglu.loss(best.parameters * times, best.tokens / times));
  }
  const Allocation chinchilla = chinchilla_optimum(kBesiroglu, 5.8e23);
  EXPECT_NEAR(chinchilla.tokens / chinchilla.parameters, 20, 6);
}

}  // namespace
}  // namespace trireme::test
