// Whole multiples: n >= 0, to > 0.
#pragma once
#include <cstdint>

namespace trireme {

constexpr int64_t div_up(int64_t n, int64_t to) {
  return (n + to - 1) / to;
}
constexpr int64_t round_up(int64_t n, int64_t to) {
  return div_up(n, to) * to;
}

}  // namespace trireme
