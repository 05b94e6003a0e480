// The classes of DESIGN section 4, as EXPECTs.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "layout_run.h"

namespace trireme::parity {

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Losses, norms, weights and optimizer state, bit for bit.
inline void expect_identical(const Ran& a, const Ran& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_TRUE(same_bits(a.norms, b.norms));  // of a step that f16 skips it is NaN
  for (const auto& [what, tensors] : a.state)
    for (const auto& [name, values] : tensors)
      EXPECT_TRUE(same_bits(values, b.state.at(what).at(name))) << name << "/" << what;
}

inline double norm_of(const Values& v) {
  double sum = 0;
  for (float x : v) sum += double(x) * x;
  return std::sqrt(sum);
}
inline double norm_of(const ByName& all) {
  double sum = 0;
  for (const auto& [name, v] : all) sum += norm_of(v) * norm_of(v);
  return std::sqrt(sum);
}
inline double distance(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); i++) sum += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
  return std::sqrt(sum);
}

// Relative differences of losses; the worst.
inline double loss_difference(const Ran& a, const Ran& b) {
  double worst = 0;
  EXPECT_EQ(a.losses.size(), b.losses.size());
  for (size_t i = 0; i < a.losses.size(); i++)
    worst = std::max(worst, std::abs(a.losses[i] / b.losses[i] - 1));
  return worst;
}

// A step whose scaled gradients went beyond the type's range: f16 leaves it out and lowers the scale.
inline bool overflown(const ByName& gradients) {
  for (const auto& [name, g] : gradients)
    for (float x : g)
      if (!std::isfinite(x)) return true;
  return false;
}

// Every gradient of every step against another run's at equal weights: distance in units of max(its norm,
// 1e-6 of the global norm); the worst.
inline double gradient_difference(const Ran& a, const Ran& b) {
  double worst = 0;
  EXPECT_EQ(a.gradients.size(), b.gradients.size());
  for (size_t s = 0; s < a.gradients.size(); s++) {
    if (overflown(b.gradients[s])) {
      EXPECT_TRUE(overflown(a.gradients[s])) << s;
      continue;
    }
    const double floor = 1e-6 * norm_of(b.gradients[s]);
    EXPECT_EQ(a.gradients[s].size(), b.gradients[s].size());
    for (const auto& [name, g] : b.gradients[s]) {
      const Values& mine = a.gradients[s].at(name);
      EXPECT_EQ(mine.size(), g.size()) << name;
      for (float x : mine) EXPECT_TRUE(std::isfinite(x)) << name;
      worst = std::max(worst, distance(mine, g) / std::max(norm_of(g), floor));
    }
  }
  return worst;
}

// Of all gradients of a step together.
inline double distance(const ByName& a, const ByName& b) {
  double sum = 0;
  for (const auto& [name, g] : b) sum += std::pow(distance(a.at(name), g), 2);
  return std::sqrt(sum);
}

// Low precision at equal weights: no further from f32's gradients than one rank in that precision by half.
inline void expect_as_exact(const Ran& layout, const Ran& one, const Ran& oracle) {
  ASSERT_EQ(layout.gradients.size(), oracle.gradients.size());
  for (size_t s = 0; s < oracle.gradients.size(); s++) {
    if (overflown(one.gradients[s])) {
      EXPECT_TRUE(overflown(layout.gradients[s])) << s;
      continue;
    }
    const double peer = distance(one.gradients[s], oracle.gradients[s]);
    EXPECT_LE(distance(layout.gradients[s], oracle.gradients[s]), 1.5 * peer);
    EXPECT_GT(peer, 0);
  }
}

}  // namespace trireme::parity
