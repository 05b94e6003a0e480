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

// The scale of a key bias's gradient where positions are learned: it adds the same to all scores of a query,
// which softmax does not see, so in exact arithmetic the gradient, the sum over tokens of dk_j, is 0, and
// floats leave the noise of its terms. Of those is known that the keys' weights get the sum of dk_j x_j^T,
// which is no larger than the sum of |dk_j| |x_j|, and x_j, out of a layer norm, no longer than sqrt(hidden)
// max |weight| + |bias|. So the terms' norms sum up to at least what this returns. 0: name is no such bias
// (rotary embedding turns each dk_j its own way).
inline double terms_of_zero_sum(const Ran& run, const ByName& gradients, const std::string& name) {
  constexpr std::string_view kBias = ".attn.k.bias";
  if (!name.ends_with(kBias) || !gradients.contains("embed.positions.weight")) return 0;
  const std::string block = name.substr(0, name.size() - kBias.size());
  const ByName& weights = run.state.at("");
  const Values &scale = weights.at(block + ".norm1.weight"), &shift = weights.at(block + ".norm1.bias");
  double most = 0;
  for (float x : scale) most = std::max(most, std::abs(double(x)));
  const double longest = std::sqrt(double(scale.size())) * most + norm_of(shift);
  return norm_of(gradients.at(block + ".attn.k.weight")) / longest;
}

// Every gradient of every step against another run's at equal weights: distance in units of max(its norm,
// 1e-6 of the global norm), of one that is 0 in exact arithmetic both runs' norms in units of its terms; the
// worst.
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
      const double terms = terms_of_zero_sum(b, b.gradients[s], name);
      worst = std::max(worst, terms > 0 ? std::max(norm_of(mine), norm_of(g)) / terms
                                        : distance(mine, g) / std::max(norm_of(g), floor));
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
