#include "data/mixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"

namespace trireme {
namespace {

using Weights = std::vector<double>;

// Walks n samples; every prefix must hold each source's share to within the bound, and indices count up.
void check_prefixes(const Weights& w, int64_t n) {
  Mixture m(w);
  const double sum = std::accumulate(w.begin(), w.end(), 0.0);
  const auto active = std::count_if(w.begin(), w.end(), [](double x) { return x > 0; });
  // 1 - 1/(2K-2), and what shares lose as multiples of 2^-40.
  const double bound =
      (active == 1 ? 0 : 1 - 1.0 / (2.0 * double(active) - 2)) + double(n) * double(active) * 0x1p-40;
  std::vector<int64_t> drawn(w.size(), 0);
  double worst = 0;
  for (int64_t i = 0; i < n; i++) {
    const Mixture::Draw d = m.at(i);
    ASSERT_GT(w[size_t(d.source)], 0);
    ASSERT_EQ(d.index, drawn[size_t(d.source)]++);
    for (size_t k = 0; k < w.size(); k++)
      worst = std::max(worst, std::fabs(double(i + 1) * w[k] / sum - double(drawn[k])));
  }
  EXPECT_LE(worst, bound + 1e-9);
  EXPECT_LT(worst, 1);
}

TEST(Mixture, EveryPrefixHoldsTheProportions) {
  check_prefixes({1}, 1000);
  check_prefixes({1, 1}, 1000);
  check_prefixes({7, 2, 1}, 3000);      // not normalised
  check_prefixes({0.7, 0, 0.3}, 3000);  // a weight of 0
  check_prefixes({0, 5, 0}, 300);       // one source left
  check_prefixes({1e6, 1}, 20000);      // very uneven
  check_prefixes({1, 1e-3, 1e-3, 1e-3, 1e-3}, 20000);
  check_prefixes({90, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 20000);  // all ten fall due at once
  check_prefixes(Weights(9, 1), 3000);
  check_prefixes(Weights(33, 1e-200), 3000);
  check_prefixes({1e300, 1e300}, 100);
  const uint64_t key = rng_key(5, 0, "weights");
  for (uint64_t trial = 0; trial < 30; trial++) {
    Weights w(2 + below(key, 100 * trial, 12));
    for (size_t k = 0; k < w.size(); k++) {
      const double u = uniform(key, 100 * trial + 1 + k);
      w[k] = trial % 2 ? u : std::pow(10, -6 * u);
    }
    check_prefixes(w, 5000);
  }
}

// However one gets there: in order, by leaps, back and forth, from a fresh object.
TEST(Mixture, IsAFunctionOfTheIndex) {
  const Weights w = {5, 3, 0, 2, 0.01};
  const int64_t n = 30000;
  Mixture m(w);
  std::vector<Mixture::Draw> want;
  for (int64_t i = 0; i < n; i++) want.push_back(m.at(i));
  const uint64_t key = rng_key(6, 0, "places");
  for (uint64_t trial = 0; trial < 300; trial++) {
    int64_t i = int64_t(below(key, trial, uint64_t(n)));
    ASSERT_EQ(m.at(i), want[size_t(i)]);
    for (int64_t k = i; k < std::min(i + 20, n); k++) ASSERT_EQ(m.at(k), want[size_t(k)]) << k;
    ASSERT_EQ(m.at(i), want[size_t(i)]);  // a step that is run again
  }
  for (int64_t i : {n - 1, int64_t(4096), int64_t(4095), int64_t(0), int64_t(8191)}) {
    Mixture fresh(w);
    EXPECT_EQ(fresh.at(i), want[size_t(i)]);
  }
}

TEST(Mixture, CountsOfAPrefix) {
  const Weights w = {3, 0, 1};
  Mixture m(w), walker(w);
  std::vector<int64_t> drawn(3, 0);
  for (int64_t i = 0; i < 500; i++) {
    auto got = m.drawn(i);
    EXPECT_EQ(std::vector<int64_t>(got.begin(), got.end()), drawn);
    drawn[size_t(walker.at(i).source)]++;
  }
  EXPECT_EQ(Mixture(Weights{4}).drawn(77)[0], 77);
  EXPECT_EQ(Mixture(Weights{0, 4}).drawn(77)[1], 77);
  EXPECT_EQ(m.drawn(400)[0], 300);
  EXPECT_DOUBLE_EQ(m.share(0), 0.75);
}

// Written down once: a change would silently change every mixture that is resumed.
TEST(Mixture, TheOrderIsThisOne) {
  Mixture m(Weights{5, 3, 2});
  std::string order;
  for (int64_t i = 0; i < 20; i++) order += char('a' + m.at(i).source);
  EXPECT_EQ(order, "abacabacbaabacabacba");
}

}  // namespace
}  // namespace trireme
