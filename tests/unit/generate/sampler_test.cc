#include "generate/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/rng.h"
#include "generate/decode_rule.h"
#include "sanitized.h"

namespace trireme {
namespace {

const std::vector<float> kLogits = {1.0f, 3.0f, 2.0f, -1.0f, 3.0f};

std::map<int32_t, double> frequencies(const SampleOptions& o, int n = 40000) {
  Sampler s(o);
  std::map<int32_t, double> f;
  for (int i = 0; i < n; i++) f[s.next(kLogits, 0, uint64_t(i))] += 1.0 / n;
  return f;
}

TEST(Sampler, GreedyTakesTheFirstOfTheLargest) {
  Sampler s({.temperature = 0});
  EXPECT_EQ(s.next(kLogits, 0, 0), 1);
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

// vLLM's rule: every logit that is at least the k-th largest stays.
TEST(Sampler, TopKKeepsTies) {
  EXPECT_EQ(frequencies({.temperature = 1, .top_k = 1}).size(), 2u);
  const std::vector<float> logits = {0, 2, 1, 2, 1, 1, 3, 1, 0};
  for (int64_t k = 1; k <= 9; k++) {
    Sampler s({.temperature = 5, .top_k = k});
    std::map<int32_t, int> seen;
    for (uint64_t i = 0; i < 3000; i++) seen[s.next(logits, 0, i)]++;
    EXPECT_EQ(seen.size(), k == 1 ? 1u : k <= 3 ? 3u : k <= 7 ? 7u : 9u) << k;
  }
}

// The rule as decode_rule.h states it, on logits with many ties: the same support, the same shares.
TEST(Sampler, FollowsTheReferenceInDouble) {
  for (uint64_t seed = 0; seed < 12; seed++) {
    std::vector<float> logits(40);
    std::vector<double> p;
    double sum = 0;
    for (size_t i = 0; i < logits.size(); i++) {
      logits[i] = std::round(float(normal(rng_key(seed, 0, "ties"), i)) * 4) / 4;
      sum += p.emplace_back(std::exp(double(logits[i])));
    }
    for (double& v : p) v /= sum;
    const SampleOptions o{.temperature = seed % 2 ? 0.7 : 1.6,
                          .top_k = seed % 3 == 0 ? 0 : int64_t(seed) + 2,
                          .top_p = seed % 4 == 0 ? 1.0 : 0.8};
    const std::vector<double> want = decoded(p, o.temperature, o.top_k, o.top_p);
    Sampler s(o);
    const int n = test::kSanitized ? 2000 : 20000;
    std::vector<double> got(want.size());
    for (int i = 0; i < n; i++) got[size_t(s.next(logits, 0, uint64_t(i)))] += 1.0 / n;
    for (size_t i = 0; i < want.size(); i++) {
      EXPECT_NEAR(got[i], want[i], 5 * std::sqrt(want[i] / n)) << "seed " << seed << " token " << i;
    }
  }
}

TEST(Sampler, SameSeedSameText) {
  Sampler a({.seed = 5}), b({.seed = 5}), c({.seed = 6});
  int differ = 0;
  for (uint64_t i = 0; i < 200; i++) {
    int32_t x = a.next(kLogits, 3, i);
    EXPECT_EQ(x, b.next(kLogits, 3, i));
    differ += x != c.next(kLogits, 3, i);
  }
  EXPECT_GT(differ, 20);
}

// The order is temperature, top-k, top-p: each of the others would keep other tokens.
TEST(Sampler, TemperatureFirstThenTopKThenTopP) {
  const std::vector<float> logits = {2.0f, 1.0f, 0.5f, 0.0f, -1.0f};
  auto kept = [&](const SampleOptions& o) {
    Sampler s(o);
    std::map<int32_t, int> seen;
    for (uint64_t i = 0; i < 20000; i++) seen[s.next(logits, 0, i)]++;
    return seen.size();
  };
  // exp(l): 7.39 2.72 1.65 1 0.37, together 13.1. Half of that is the first alone; of a flat distribution
  // (temperature 100) half is three tokens; of the first three (11.8) 0.6 is the first, of all five two are.
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.5}), 1u);
  EXPECT_EQ(kept({.temperature = 100, .top_p = 0.5}), 3u);
  EXPECT_EQ(kept({.temperature = 1, .top_k = 3, .top_p = 0.6}), 1u);
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.6}), 2u);
}

// A large vocabulary goes through the sort in parts.
TEST(Sampler, TopPOfALargeVocabularyIsTheNucleus) {
  std::vector<float> logits(test::kSanitized ? 800 : 5000);
  for (size_t i = 0; i < logits.size(); i++) logits[i] = float(normal(rng_key(1, 0, "logits"), i));
  std::vector<std::pair<double, int32_t>> order;
  double sum = 0, reached = 0;
  for (size_t i = 0; i < logits.size(); i++) {
    order.push_back({-std::exp(double(logits[i])), int32_t(i)});
    sum -= order.back().first;
  }
  std::sort(order.begin(), order.end());
  for (double p : {0.05, 0.5, 0.97}) {
    std::map<int32_t, bool> nucleus;
    reached = 0;
    for (size_t n = 0; reached < p * sum; n++) reached -= order[n].first, nucleus[order[n].second] = true;
    Sampler s({.temperature = 1, .top_p = p});
    std::map<int32_t, int> seen;
    for (uint64_t i = 0; i < (test::kSanitized ? 500 : 3000); i++) {
      int32_t id = s.next(logits, 1, i);
      ASSERT_TRUE(nucleus.contains(id)) << id << " at p = " << p;
      seen[id]++;
    }
    EXPECT_GT(seen.size(), nucleus.size() / 8);
  }
}

TEST(Sampler, TextsHaveDrawsOfTheirOwn) {
  Sampler s({.seed = 5});
  int differ = 0;
  for (uint64_t i = 0; i < 200; i++) differ += s.next(kLogits, 0, i) != s.next(kLogits, 1, i);
  EXPECT_GT(differ, 20);
}

TEST(Sampler, RefusesWhatMakesNoSense) {
  EXPECT_THROW(Sampler({.temperature = -1}), Error);
  EXPECT_THROW(Sampler({.top_k = -3}), Error);
  EXPECT_THROW(Sampler({.top_p = 0}), Error);
  Sampler s({});
  EXPECT_THROW(s.next(std::vector<float>{1.0f, NAN}, 0, 0), Error);
}

}  // namespace
}  // namespace trireme
