// The toy machine against the paper's numbers, and the theory of self-distillation against itself
// (PAPERS 1.7, acceptance A).
#include "tune/toy_machine.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "generate/decode_rule.h"
#include "tune/loss_terms.h"

namespace trireme {
namespace {

double bits(const std::vector<double>& p) {
  double h = 0;
  for (double v : p) h -= v * std::log2(v);
  return h;
}

std::vector<double> kept(const std::vector<double>& p) {
  std::vector<double> k;
  for (double v : p)
    if (v > 0) k.push_back(v);
  return k;
}

TEST(ToyMachine, HeadsHaveThePapersEntropies) {
  const ToyMachine t = ToyMachine::teacher();
  EXPECT_NEAR(bits(t.fork), 2.81, 0.005);
  EXPECT_NEAR(bits(t.lock), 1.61, 0.005);
}

TEST(ToyMachine, StudentHasThePapersDistributions) {
  const ToyMachine s = ToyMachine::teacher().student(0.9, 0.85);
  const std::vector<double> lock = kept(s.lock);
  ASSERT_EQ(lock.size(), 2u);
  EXPECT_NEAR(lock[0], 0.948, 0.0005);
  EXPECT_NEAR(lock[1], 0.052, 0.0005);
  ASSERT_EQ(kept(s.fork).size(), 5u);
  EXPECT_NEAR(s.fork[0], 0.169, 0.0005);
  EXPECT_NEAR(s.fork[1], 0.344, 0.0005);
  EXPECT_NEAR(s.root[2], 0.406, 0.0005);
}

// Within 0.05 percentage points, and 0.01 of temperature. The paper's own student optimum is at 2.091.
TEST(ToyMachine, BestChancesAreThePapers) {
  const ToyMachine teacher = ToyMachine::teacher();
  const ToyMachine student = teacher.student(0.9, 0.85);
  const ToyMachine::Best before = teacher.best(0.80);
  const ToyMachine::Best after = student.best(0.80);
  EXPECT_NEAR(before.pass * 100, 8.32, 0.05);
  EXPECT_NEAR(before.temperature, 0.639, 0.01);
  EXPECT_NEAR(after.pass * 100, 13.77, 0.05);
  EXPECT_NEAR(after.temperature, 2.091, 0.01);
  EXPECT_NEAR((after.pass - before.pass) * 100, 5.4, 0.05);
  EXPECT_NEAR((student.best(0.90).pass - teacher.best(0.90).pass) * 100, 1.4,
              0.06);  // 1.35; the paper rounds
}

std::vector<double> some_distribution(uint64_t seed, size_t n) {
  std::vector<double> p;
  double sum = 0;
  for (size_t i = 0; i < n; i++) sum += p.emplace_back(std::exp(2 * normal(rng_key(seed, 0, "p"), i)));
  for (double& v : p) v /= sum;
  return p;
}

TEST(LossTerms, AddUpToTheCrossEntropy) {
  for (uint64_t seed = 0; seed < 200; seed++) {
    const std::vector<double> frozen = some_distribution(seed, 50);
    const std::vector<double> p = some_distribution(seed + 1000, 50);
    const double t = 0.3 + 0.01 * double(seed);
    const std::vector<double> q = decoded(frozen, t, seed % 3 == 0 ? 0 : 20, seed % 2 == 0 ? 1.0 : 0.8);
    const LossTerms terms = loss_terms(p, q, t);
    EXPECT_NEAR(terms.sum(), cross_entropy_of(p, q), 1e-10) << seed;
    EXPECT_GE(terms.compression, -1e-12);
    EXPECT_GE(terms.anchor, -1e-12);
  }
}

// Outside of the support every logit falls; inside the gradient is p - q. By finite differences too.
TEST(LossTerms, GradientIsPMinusQ) {
  const std::vector<double> p = some_distribution(1, 20);
  const std::vector<double> q = decoded(some_distribution(2, 20), 0.7, 8, 1.0);
  const std::vector<double> g = logit_gradient(p, q);
  for (size_t i = 0; i < p.size(); i++) {
    if (q[i] == 0) {
      EXPECT_GT(g[i], 0) << i;
    }
    auto loss = [&](double step) {  // softmax(log p + step e_i)
      std::vector<double> moved = p;
      moved[i] *= std::exp(step);
      double sum = 0;
      for (double v : moved) sum += v;
      for (double& v : moved) v /= sum;
      return cross_entropy_of(moved, q);
    };
    EXPECT_NEAR(g[i], (loss(1e-5) - loss(-1e-5)) / 2e-5, 1e-8) << i;
  }
}

// T = 1 without truncation: the expected gradient is 0, that of n samples falls as 1 / sqrt(n).
TEST(LossTerms, TemperatureOneIsAFixedPoint) {
  const std::vector<double> p = some_distribution(3, 16);
  for (double g : logit_gradient(p, decoded(p, 1.0, 0, 1.0))) EXPECT_NEAR(g, 0, 1e-15);
  auto norm_of_samples = [&](int n, uint64_t seed) {
    std::vector<double> q(p.size());
    for (int i = 0; i < n; i++) {
      double u = uniform(rng_key(seed, uint64_t(n), "draw"), uint64_t(i));
      size_t id = 0;
      while (id + 1 < p.size() && (u -= p[id]) >= 0) id++;
      q[id] += 1.0 / n;
    }
    double squares = 0;
    for (double g : logit_gradient(p, q)) squares += g * g;
    return squares;
  };
  double few = 0;
  double many = 0;
  for (uint64_t seed = 0; seed < 40; seed++) {
    few += norm_of_samples(100, seed);
    many += norm_of_samples(1600, seed);
  }
  EXPECT_NEAR(std::sqrt(few / many), 4, 0.6);
}

TEST(DecodeRule, TemperaturesMultiplyOnAFixedSupport) {
  const std::vector<double> p = some_distribution(4, 30);
  const std::vector<double> twice = temper(temper(p, 1.3), 0.7);
  const std::vector<double> once = temper(p, 1.3 * 0.7);
  for (size_t i = 0; i < p.size(); i++) EXPECT_NEAR(twice[i], once[i], 1e-12);
}

}  // namespace
}  // namespace trireme
