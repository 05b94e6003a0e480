#include "base/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace trireme {
namespace {

// Known answers of the Random123 distribution for philox4x32-10 (counter and key all zero; all ones).
TEST(Rng, PhiloxKnownAnswer) {
  auto w = philox(0, 0);
  EXPECT_EQ(w[0], 0x6627e8d5u);
  EXPECT_EQ(w[1], 0xe169c58du);
  EXPECT_EQ(w[2], 0xbc57ac4cu);
  EXPECT_EQ(w[3], 0x9b00dbd8u);
}

TEST(Rng, PairsAreTheElementsThemselves) {
  uint64_t key = rng_key(5, 0, "pairs");
  for (uint64_t i = 0; i < 2000; i++) {
    EXPECT_EQ(normal_pair(key, i)[0], normal(key, 2 * i));
    EXPECT_EQ(normal_pair(key, i)[1], normal(key, 2 * i + 1));
  }
}

TEST(Rng, NormalHasTheRightMoments) {
  double s = 0, s2 = 0, s4 = 0;
  int n = 200000;
  uint64_t key = rng_key(7, 0, "w");
  for (int i = 0; i < n; i++) {
    double x = normal(key, uint64_t(i));
    s += x, s2 += x * x, s4 += x * x * x * x;
  }
  EXPECT_NEAR(s / n, 0, 0.01);
  EXPECT_NEAR(s2 / n, 1, 0.015);
  EXPECT_NEAR(s4 / n, 3, 0.1);
}

TEST(Rng, KeysDifferInEveryInput) {
  std::set<uint64_t> keys;
  for (uint64_t seed = 0; seed < 8; seed++)
    for (uint64_t step = 0; step < 8; step++)
      for (const char* name : {"a", "b", "ab", ""}) keys.insert(rng_key(seed, step, name));
  EXPECT_EQ(keys.size(), 8u * 8 * 4);
}

TEST(Rng, PermuteIsAPermutation) {
  for (uint64_t n : {1, 2, 3, 5, 64, 100, 1023, 4097}) {
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < n; i++) {
      uint64_t x = permute(42, i, n);
      ASSERT_LT(x, n);
      seen.insert(x);
    }
    EXPECT_EQ(seen.size(), n);
  }
}

}  // namespace
}  // namespace trireme
