// Prices of a layout's work and paths that count them, for the bound of a step (forecast/step_bound.h).
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "forecast/work_prices.h"
#include "sim/world.h"

namespace trireme::step_paths {

enum LayerPrice : size_t {
  kForward,
  kInput,
  kWeight,
  kAgain,
  kReduce,
  kGather,
  kReduceExperts,
  kGatherExperts,
  kUpdate,
  kPriceKinds
};
constexpr size_t kRankUpdate = size_t(kWorkLayers) * kPriceKinds;  // WorldWork::update
constexpr size_t kPrices = kRankUpdate + 1;
using Prices = std::array<double, kPrices>;
// The prices on a path, and how often it has each.
class Counts {
 public:
  Counts() = default;
  template <class All>
  explicit Counts(const All& all) {
    for (size_t i = 0; i < all.size(); i++)
      if (all[i] != 0) counts_.push_back({i, double(all[i])});
  }
  template <class All>
  double sum(const All& prices) const {
    double s = 0;
    for (const auto& [i, n] : counts_) s += n * prices[i];
    return s;
  }
  double of(size_t price) const {
    for (const auto& [i, n] : counts_)
      if (i == price) return n;
    return 0;
  }
  bool operator==(const Counts&) const = default;

 private:
  std::vector<std::pair<size_t, double>> counts_;
};

inline Prices prices_of(const WorldWork& w) {
  Prices p{};
  for (size_t k = 0; k < std::min(size_t(kWorkLayers), w.kinds.size()); k++) {
    const LayerWork& l = w.kinds[k];
    const int64_t all[kPriceKinds] = {l.forward.total(), l.input.total(),  l.weight.total(),
                                      l.again.total(),   l.reduce,         l.gather,
                                      l.reduce_experts,  l.gather_experts, l.update};
    for (size_t i = 0; i < kPriceKinds; i++) p[k * kPriceKinds + i] = double(all[i]);
  }
  p[kRankUpdate] = w.update.empty() ? 0 : double(w.update[0]);
  return p;
}

// Rough proportions of prices, by which it is decided whether a path has to be searched again.
using Profile = uint64_t;
inline void mix(Profile& p, double value, double of) {
  // Octaves and halves of them, from the bits of the quotient.
  const uint64_t step = value <= 0 || of <= 0 ? 0 : std::bit_cast<uint64_t>(value / of) >> 51;
  p = (p ^ step) * 0x9e3779b97f4a7c15u;
  p ^= p >> 29;
}

// The profiles at whose prices paths were searched, at most kMost.
class Tried {
 public:
  bool full() const { return all_.size() == kMost; }
  // Whether it is a new one.
  bool add(Profile p) {
    if (full() || std::find(all_.begin(), all_.end(), p) != all_.end()) return false;
    all_.push_back(p);
    return true;
  }

 private:
  static constexpr size_t kMost = 8;
  std::vector<Profile> all_;
};

// Longest paths at some prices. After a few searches that found nothing new there are no more.
template <class C>
struct Paths {
  static constexpr int kMostInVain = 2;
  std::vector<C> all;
  int in_vain = 0;
  bool settled() const { return in_vain >= kMostInVain; }
  // Returns whether it is a new one.
  bool add(C c) {
    if (std::find(all.begin(), all.end(), c) != all.end()) {
      in_vain++;
      return false;
    }
    all.push_back(std::move(c));
    in_vain = 0;
    return true;
  }
};

}  // namespace trireme::step_paths
