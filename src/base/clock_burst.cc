#include "base/clock_burst.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace trireme {

double clock_burst() {
  using Clock = std::chrono::steady_clock;
  constexpr int kChains = 12, kLength = 20'000;
  static volatile uint64_t seed = 3;
  [[maybe_unused]] static volatile uint64_t sink = 0;
  double best = 0;
  for (int chain = 0; chain < kChains; chain++) {
    uint64_t x = seed;
    const auto begin = Clock::now();
    for (int i = 0; i < kLength; i++) x = x * 0x9e3779b97f4a7c15ull + (x >> 63);
    const auto end = Clock::now();
    sink = x;
    const double ns = std::chrono::duration<double, std::nano>(end - begin).count();
    if (ns > 0) best = std::max(best, kLength / ns);
  }
  return best;
}

}  // namespace trireme
