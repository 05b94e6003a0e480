#include "base/hmac.h"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace trireme {
namespace {

// FIPS 180-4, 4.2.2: the first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(const std::byte* p) {
  return uint32_t(p[0]) << 24 | uint32_t(p[1]) << 16 | uint32_t(p[2]) << 8 | uint32_t(p[3]);
}

void compress(uint32_t (&state)[8], const std::byte* block) {
  uint32_t w[64];
  for (int i = 0; i < 16; i++) w[i] = big_endian(block + 4 * i);
  for (int i = 16; i < 64; i++) {
    const uint32_t a = w[i - 15];
    const uint32_t b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  uint32_t v[8];
  std::copy_n(state, 8, v);
  for (int i = 0; i < 64; i++) {
    const uint32_t e = v[4];
    const uint32_t a = v[0];
    const uint32_t one = v[7] + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                         ((e & v[5]) ^ (~e & v[6])) + kRound[i] + w[i];
    const uint32_t two =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
    std::copy_backward(v, v + 7, v + 8);
    v[4] += one;
    v[0] = one + two;
  }
  for (int i = 0; i < 8; i++) state[i] += v[i];
}

}  // namespace

Digest sha256(std::span<const std::byte> message) {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  // The message, 0x80, zeros, and its length in bits as 64 bits, big endian: whole blocks of 64 bytes.
  std::vector<std::byte> padded(message.begin(), message.end());
  padded.push_back(std::byte{0x80});
  while (padded.size() % 64 != 56) padded.push_back(std::byte{0});
  const uint64_t bits = 8 * uint64_t(message.size());
  for (int i = 7; i >= 0; i--) padded.push_back(std::byte(bits >> (8 * i)));
  for (size_t at = 0; at < padded.size(); at += 64) compress(state, padded.data() + at);
  Digest d;
  for (size_t i = 0; i < d.size(); i++) d[i] = std::byte(state[i / 4] >> (24 - 8 * (i % 4)));
  return d;
}

Digest hmac_sha256(std::string_view key, std::span<const std::byte> message) {
  std::array<std::byte, 64> block{};
  if (key.size() > block.size()) {
    const Digest short_key = sha256(std::as_bytes(std::span(key)));
    std::copy(short_key.begin(), short_key.end(), block.begin());
  } else {
    std::memcpy(block.data(), key.data(), key.size());
  }
  auto hashed = [&](uint8_t pad, std::span<const std::byte> rest) {
    std::vector<std::byte> all;
    for (std::byte b : block) all.push_back(b ^ std::byte(pad));
    all.insert(all.end(), rest.begin(), rest.end());
    return sha256(all);
  };
  const Digest inner = hashed(0x36, message);
  return hashed(0x5c, inner);
}

bool same_digest(const Digest& a, const Digest& b) {
  std::byte differ{0};
  for (size_t i = 0; i < a.size(); i++) differ |= a[i] ^ b[i];
  return differ == std::byte{0};
}

void random_bytes(std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t n = ::getrandom(to.data(), to.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) system_failed_in_run(errno, "the system gives no random numbers: {}", std::strerror(errno));
    to = to.subspan(size_t(n));
  }
}

}  // namespace trireme
