#include "tasks/python_random.h"

#include <array>
#include <bit>
#include <cmath>
#include <set>

#include "base/error.h"

namespace trireme {
namespace {

// init_by_array of one key (Matsumoto and Nishimura, 2002), handed to the engine as its first state.
struct PythonSeed {
  using result_type = uint32_t;
  uint32_t key;
  template <class Iterator>
  void generate(Iterator begin, Iterator end) const {
    constexpr size_t kWords = 624;
    require(size_t(end - begin) == kWords, "another engine than mt19937");
    std::array<uint32_t, kWords> w{};
    w[0] = 19650218;
    for (size_t i = 1; i < kWords; i++) w[i] = 1812433253u * (w[i - 1] ^ (w[i - 1] >> 30)) + uint32_t(i);
    size_t i = 1;
    for (size_t n = 0; n < kWords; n++) {
      w[i] = (w[i] ^ ((w[i - 1] ^ (w[i - 1] >> 30)) * 1664525u)) + key;
      if (++i >= kWords) {
        w[0] = w[kWords - 1];
        i = 1;
      }
    }
    for (size_t n = 0; n + 1 < kWords; n++) {
      w[i] = (w[i] ^ ((w[i - 1] ^ (w[i - 1] >> 30)) * 1566083941u)) - uint32_t(i);
      if (++i >= kWords) {
        w[0] = w[kWords - 1];
        i = 1;
      }
    }
    w[0] = 0x80000000u;
    std::copy(w.begin(), w.end(), begin);
  }
};

std::mt19937 seeded(uint32_t seed) {
  PythonSeed s{seed};
  return std::mt19937(s);
}

}  // namespace

PythonRandom::PythonRandom(uint32_t seed) : engine_(seeded(seed)) {}

uint64_t PythonRandom::below(uint64_t n) {
  require(n >= 1 && n < (1ull << 32), "a draw from too many");
  const auto bits = unsigned(std::bit_width(n));
  uint64_t r = n;
  while (r >= n) r = engine_() >> (32 - bits);
  return r;
}

std::vector<size_t> PythonRandom::sample(size_t n, size_t k) {
  require(k <= n, "a sample larger than its population");
  std::vector<size_t> result;
  double pool_limit = 21;
  if (k > 5) pool_limit += std::pow(4, std::ceil(std::log(double(k * 3)) / std::log(4.0)));
  if (double(n) <= pool_limit) {
    std::vector<size_t> pool(n);
    for (size_t i = 0; i < n; i++) pool[i] = i;
    for (size_t i = 0; i < k; i++) {
      const uint64_t j = below(n - i);
      result.push_back(pool[j]);
      pool[j] = pool[n - i - 1];
    }
    return result;
  }
  std::set<size_t> seen;
  while (result.size() < k) {
    const uint64_t j = below(n);
    if (seen.insert(j).second) result.push_back(j);
  }
  return result;
}

}  // namespace trireme
