// dropout_mask.h on the device: the same elements are kept, to the bit.
#pragma once
#include "device/cuda/gpu.cuh"

namespace trireme::cuda {

// base/rng.h's philox (Philox4x32-10).
struct Words4 {
  uint32_t w[4];
};
__device__ __forceinline__ Words4 philox_words(uint64_t key, uint64_t index) {
  uint32_t c0 = uint32_t(index), c1 = uint32_t(index >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
    const uint32_t n0 = uint32_t(p1 >> 32) ^ c1 ^ k0, n2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c1 = uint32_t(p1), c3 = uint32_t(p0), c0 = n0, c2 = n2;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// mesh/context.h's PositionRuns::at.
__device__ __forceinline__ int64_t place_of(const PositionRuns& runs, int64_t i) {
  i += runs.first;
  return runs.length == 0 ? i : runs.begin + i / runs.length * runs.step + i % runs.length;
}

// What kernels need of a mask; numbers as DropoutMask has them.
struct Dropout {
  uint64_t key = 0;
  uint32_t threshold = 0;
  float scale = 1;

  Dropout() = default;
  explicit Dropout(const DropoutMask& m) : key(m.key), threshold(m.threshold()), scale(float(m.scale())) {}
  __device__ __forceinline__ bool keeps(uint64_t index) const {
    const Words4 four = philox_words(key, index / 4);
    const uint32_t at = uint32_t(index % 4);  // chosen without an array that an address is taken of
    const uint32_t low = at & 1 ? four.w[1] : four.w[0], high = at & 1 ? four.w[3] : four.w[2];
    return (at & 2 ? high : low) >= threshold;
  }
  // Bit i: is element index + i kept? Eight at two draws where four elements begin at index, else at eight.
  __device__ __forceinline__ unsigned keeps8(uint64_t index) const {
    unsigned bits = 0;
    if (index % 4 == 0) {
#pragma unroll
      for (unsigned half = 0; half < 2; half++) {
        const Words4 four = philox_words(key, index / 4 + half);
#pragma unroll
        for (unsigned i = 0; i < 4; i++) bits |= unsigned(four.w[i] >= threshold) << (4 * half + i);
      }
      return bits;
    }
#pragma unroll 1
    for (unsigned i = 0; i < 8; i++) bits |= unsigned(keeps(index + i)) << i;
    return bits;
  }
};

}  // namespace trireme::cuda
