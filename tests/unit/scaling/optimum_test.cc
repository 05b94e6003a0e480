// PAPERS 2.7, acceptance A.
#include "scaling/optimum.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "planted.h"
#include "scaling/pictures.h"

namespace trireme::test {
namespace {

TEST(BetaPass, IsWhatDrawingGives) {
  EXPECT_NEAR(beta_pass(0.01, 0.49, 100), 0.064, 5e-4);  // the paper's example: mu 0.02, nu 0.5
  EXPECT_NEAR(beta_pass(2, 3, 1), 0.4, 1e-12);
  // Beta(a, b) of whole a and b: the a-th smallest of a + b - 1 uniform numbers.
  for (const auto& [a, b] : {std::pair{1, 4}, {2, 3}, {3, 9}}) {
    for (const int k : {1, 4, 32}) {
      constexpr int kDraws = 4000;
      double sum = 0;
      double squares = 0;
      const uint64_t key = rng_key(5, uint64_t(100 * a + k), "beta");
      std::vector<double> u(size_t(a + b - 1));
      for (int i = 0; i < kDraws; i++) {
        for (size_t j = 0; j < u.size(); j++) u[j] = uniform(key, uint64_t(i) * u.size() + j);
        std::nth_element(u.begin(), u.begin() + a - 1, u.end());
        const double pass = 1 - std::pow(1 - u[size_t(a - 1)], k);
        sum += pass;
        squares += pass * pass;
      }
      const double mean = sum / kDraws;
      const double error = std::sqrt((squares / kDraws - mean * mean) / kDraws);
      EXPECT_NEAR(beta_pass(a, b, k), mean, 3 * error) << a << " " << b << " " << k;
    }
  }
}

TEST(Optimum, WithoutGainOfSamplesIsChinchillas) {
  TaskLaw law = kTask;
  law.G = 0;
  const ChinchillaLaw same{law.E, law.A, law.B, law.alpha, law.beta};
  for (const double train : {1e18, 1e21, 1e24}) {
    const Allocation closed = chinchilla_optimum(same, train);
    const Choice c = best_by_loss(law, {train, 1e20});
    EXPECT_NEAR(c.parameters / closed.parameters, 1, 1e-9);
    EXPECT_NEAR(c.tokens / closed.tokens, 1, 1e-9);
  }
}

TEST(Optimum, OfLossIsBruteForces) {
  for (const double train : {1e18, 1e21, 1e24})
    for (const double inference : {1e8, 1e10, 140e9}) {
      const Choice c = best_by_loss(kTask, {train, inference});
      const Choice brute = brute_force([](double n, double d, double k) { return kTask.loss(n, d, k); },
                                       {train, inference}, 400);
      EXPECT_NEAR(c.parameters / brute.parameters, 1, 0.01) << train << " " << inference;
      EXPECT_LE(c.value, brute.value * (1 + 1e-12));
    }
}

TEST(Optimum, OfPassIsBruteForces) {
  for (const double train : {1e18, 1e21})
    for (const double inference : {1e9, 1e11}) {
      const Choice c = best_by_pass(kPass, {train, inference});
      const Choice brute = brute_force([](double n, double d, double k) { return -kPass.pass(n, d, k); },
                                       {train, inference}, 400);
      EXPECT_NEAR(c.parameters / brute.parameters, 1, 0.01);
      EXPECT_GE(c.value, -brute.value * (1 - 1e-12));
    }
}

TEST(Optimum, SizeSaturatesAndGrowsWithInference) {
  const double limit = saturated_size(kTask, 140e9);
  double last = 0;
  for (const double train : {1e20, 1e24, 1e28, 1e34}) {
    const double n = best_by_loss(kTask, {train, 140e9}).parameters;
    EXPECT_GT(n, last);
    EXPECT_LT(n, limit);
    last = n;
  }
  EXPECT_NEAR(last / limit, 1, 0.05);
  // The paper's notes work one case.
  const Choice c = best_by_loss(kTask, {1e22, 140e9});
  EXPECT_NEAR(c.parameters / 1.21e9, 1, 0.02);
  EXPECT_NEAR(c.tokens / c.parameters / 1145, 1, 0.03);
  EXPECT_NEAR(c.samples / 58, 1, 0.02);
  last = 0;
  for (const double inference : {1e8, 1e9, 1e10, 1e11}) {
    const double n = best_by_loss(kTask, {1e22, inference}).parameters;
    EXPECT_GT(n, last);
    last = n;
  }
}

TEST(Optimum, OneSampleLimitsTheSize) {
  TaskLaw law = kTask;
  law.G = 1e-9;  // Chinchilla's size, were it served
  const Choice c = best_by_loss(law, {1e22, 1e9});
  EXPECT_NEAR(c.parameters, 5e8, 1);
  EXPECT_NEAR(c.samples, 1, 1e-6);
  EXPECT_THROW(best_by_loss(kTask, {1e2, 1e9}), Error);
}

std::vector<LossPoint> sampled(double noise, uint64_t seed) {
  std::vector<LossPoint> points;
  const uint64_t key = rng_key(seed, 0, "sampled");
  for (int b = 0; b < 6; b++)
    for (int i = 0; i < 7; i++)
      for (const double k : {1, 4, 16, 64, 256}) {
        LossPoint p;
        p.flops = 1e16 * std::pow(10, 0.6 * b);
        p.parameters = 5e6 * std::exp2(1.1 * i);
        p.tokens = p.flops / (6 * p.parameters);
        p.samples = k;
        p.loss = kPass.loss.loss(p.parameters, p.tokens);
        p.task_loss = kTask.loss(p.parameters, p.tokens, k) * std::exp(noise * normal(key, points.size()));
        p.pass = std::min(
            1.0, kPass.pass(p.parameters, p.tokens, k) * std::exp(noise * normal(~key, points.size())));
        p.run = 7 * b + i;
        points.push_back(p);
      }
  return points;
}

TEST(Samples, PlantedExponentsAreRecovered) {
  for (const uint64_t seed : {1, 2, 3}) {
    const TaskLaw law = fit_task(sampled(seed == 1 ? 0 : 5e-4, seed));
    EXPECT_NEAR(law.alpha / kTask.alpha, 1, 0.05);
    EXPECT_NEAR(law.beta / kTask.beta, 1, 0.05);
    EXPECT_NEAR(law.gamma / kTask.gamma, 1, 0.05);
  }
}

TEST(Samples, PlantedPassRatesAreForecast) {
  const std::vector<LossPoint> points = sampled(1e-3, 4);
  std::vector<LossPoint> fitted = points;
  std::erase_if(fitted, [](const LossPoint& p) { return p.tokens > 300 * p.parameters; });  // overtrained
  const PassLaw law = fit_pass(fitted);
  EXPECT_GE(relative_error(law, fitted), 0);
  EXPECT_LT(relative_error(law, fitted), 0.01);
  EXPECT_LT(relative_error(law, points), 0.03);
}

TEST(Samples, RefusesTooFew) {
  std::vector<LossPoint> points = sampled(0, 1);
  std::erase_if(points, [](const LossPoint& p) { return p.samples > 4; });
  EXPECT_THROW(fit_task(points), Error);
  EXPECT_THROW(fit_pass(points), Error);
}

TEST(Shares, AreOnePointEach) {
  const auto best = [](const Budgets& b) { return best_by_loss(kTask, b); };
  const std::vector<SharePoint> f = share_frontier(best, 1e22, 1e12, 9);
  ASSERT_EQ(f.size(), 9u);
  EXPECT_NEAR(f[4].share, 0.5, 1e-12);
  EXPECT_NEAR(f[4].budgets.train, 5e21, 1e9);
  EXPECT_NEAR(f[4].budgets.inference, 5e9, 1);
  EXPECT_GT(f[8].choice.samples, f[0].choice.samples);
  std::vector<std::pair<double, Choice>> by;
  for (const SharePoint& p : f) by.emplace_back(p.budgets.inference, p.choice);
  EXPECT_NE(optimum_picture(by).svg.find("samples"), std::string::npos);
}

}  // namespace
}  // namespace trireme::test
