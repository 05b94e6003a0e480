#include "generate/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"

namespace trireme {
namespace {

const std::vector<float> kLogits = {1.0f, 3.0f, 2.0f, -1.0f, 3.0f};

std::map<int32_t, double> frequencies(const SampleOptions& o, int n = 40000) {
  Sampler s(o);
  std::map<int32_t, double> f;
  for (int i = 0; i < n; i++) f[s.next(kLogits, uint64_t(i))] += 1.0 / n;
  return f;
}

TEST(Sampler, GreedyTakesTheFirstOfTheLargest) {
  Sampler s({.temperature = 0});
  EXPECT_EQ(s.next(kLogits, 0), 1);
}

TEST(Sampler, FrequenciesFollowTheTemperedSoftmax) {
  for (double t : {0.5, 1.0, 2.0}) {
    auto f = frequencies({.temperature = t});
    double sum = 0;
    for (float l : kLogits) sum += std::exp(l / t);
    for (size_t i = 0; i < kLogits.size(); i++)
      EXPECT_NEAR(f[int32_t(i)], std::exp(kLogits[i] / t) / sum, 0.01) << "token " << i << " at " << t;
  }
}

TEST(Sampler, TopKThenTopP) {
  auto k = frequencies({.temperature = 1, .top_k = 3});
  EXPECT_EQ(k.size(), 3u);
  EXPECT_EQ(k.count(0), 0u);
  // Two tokens of equal logits hold 2e/(2e+1) = 84 % of the three: p = 0.8 keeps just them.
  auto p = frequencies({.temperature = 1, .top_k = 3, .top_p = 0.8});
  EXPECT_EQ(p.size(), 2u);
  EXPECT_NEAR(p[1], 0.5, 0.01);
  auto one = frequencies({.temperature = 1, .top_p = 1e-9});
  EXPECT_EQ(one.size(), 1u);
  EXPECT_EQ(one.begin()->first, 1);
}

TEST(Sampler, SameSeedSameText) {
  Sampler a({.seed = 5}), b({.seed = 5}), c({.seed = 6});
  int differ = 0;
  for (uint64_t i = 0; i < 200; i++) {
    int32_t x = a.next(kLogits, i);
    EXPECT_EQ(x, b.next(kLogits, i));
    differ += x != c.next(kLogits, i);
  }
  EXPECT_GT(differ, 20);
}

TEST(Sampler, RefusesWhatMakesNoSense) {
  EXPECT_THROW(Sampler({.temperature = -1}), Error);
  EXPECT_THROW(Sampler({.top_k = -3}), Error);
  EXPECT_THROW(Sampler({.top_p = 0}), Error);
  Sampler s({});
  EXPECT_THROW(s.next(std::vector<float>{1.0f, NAN}, 0), Error);
}

}  // namespace
}  // namespace trireme
