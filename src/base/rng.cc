#include "base/rng.h"

#include <xxhash.h>

#include <bit>
#include <cmath>

#include "base/error.h"

namespace trireme {
namespace {

uint64_t splitmix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

uint64_t word64(uint64_t key, uint64_t index) {
  auto w = philox(key, index);
  return uint64_t(w[0]) << 32 | w[1];
}

}  // namespace

uint64_t rng_key(uint64_t seed, uint64_t step, std::string_view name) {
  return splitmix(splitmix(splitmix(seed) ^ step) ^ XXH3_64bits(name.data(), name.size()));
}

std::array<uint32_t, 4> philox(uint64_t key, uint64_t index) {
  uint32_t c0 = uint32_t(index), c1 = uint32_t(index >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
    uint32_t n0 = uint32_t(p1 >> 32) ^ c1 ^ k0, n2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c1 = uint32_t(p1), c3 = uint32_t(p0), c0 = n0, c2 = n2;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

double uniform(uint64_t key, uint64_t index) {
  return double(word64(key, index) >> 11) * 0x1.0p-53;
}

std::array<double, 2> normal_pair(uint64_t key, uint64_t pair) {
  auto w = philox(key, pair);
  double u1 = (double(w[0]) + 0.5) * 0x1.0p-32, u2 = (double(w[1]) + 0.5) * 0x1.0p-32;
  double r = std::sqrt(-2 * std::log(u1)), t = 2 * M_PI * u2;
  return {r * std::cos(t), r * std::sin(t)};
}

double normal(uint64_t key, uint64_t index) {
  return normal_pair(key, index / 2)[index % 2];
}

uint64_t below(uint64_t key, uint64_t index, uint64_t n) {
  require(n >= 1, "below(): n must be at least 1");
  return uint64_t((unsigned __int128)word64(key, index) * n >> 64);
}

uint64_t permute(uint64_t key, uint64_t position, uint64_t n) {
  require(position < n, "permute(): position must be below n");
  if (n == 1) return 0;
  int half = (std::bit_width(n - 1) + 1) / 2;  // the network works on 2*half bits, at most 4n values
  uint64_t mask = (uint64_t(1) << half) - 1, x = position;
  do {
    uint64_t l = x >> half, r = x & mask;
    for (uint32_t round = 0; round < 6; round++) {
      uint64_t f = splitmix(key ^ splitmix(uint64_t(round) << 56 | r)) & mask;
      uint64_t next = l ^ f;
      l = r, r = next;
    }
    x = l << half | r;
  } while (x >= n);
  return x;
}

}  // namespace trireme
