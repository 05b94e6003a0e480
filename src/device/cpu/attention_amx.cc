// Attention's products of bf16 in tile registers (AMX): tiles of 16 x 16 sums over 16 units. What is packed
// for AVX512-BF16 suits them as it is, so all other tile functions are that set's. This file alone is
// compiled for AMX; nothing of it runs unless processor and kernel were asked (tiles::kernels()).
#include "device/cpu/attention.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__)
#include <immintrin.h>

#include "device/cpu/avx512-inl.h"
#include "device/cpu/gemm_tiles.h"

namespace trireme::cpu::attention {
namespace {

constexpr int64_t kUnit = 4, kStep = 16, kHalfStep = 8;  // bytes; units of a tile of a, of a half one

// 0 to 3: sums; 4: 16 rows of a, 6: 16 units of b; 5, 7: the same of half a step, for sums of 8 units more.
struct alignas(64) Config {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 32, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 8};
};
void begin() {
  static constexpr Config config;
  _tile_loadconfig(&config);
}
void end() {
  _tile_release();
}

// The compiler does not see that tile loads read memory.
TRIREME_INLINE void memory_is_read() {
  asm volatile("" ::: "memory");
}

// Rows i to i + 15 of a, units k to k + n: where they lie, or transposed into `space`.
struct Left {
  const std::byte* data;
  int64_t row;  // bytes
};
TRIREME_INLINE Left left(const Product<float>& p, int64_t i, int64_t k, int64_t n, uint32_t* space) {
  if (p.a_step == 1) return {p.a + (i * p.a_row + k) * kUnit, p.a_row * kUnit};
  __m512i r[kStep];
#pragma GCC unroll 16
  for (int u = 0; u < kStep; u++)
    r[u] = u < n ? _mm512_loadu_si512(p.a + ((k + u) * p.a_step + i) * kUnit) : _mm512_setzero_si512();
  transpose(r);
#pragma GCC unroll 16
  for (int l = 0; l < kStep; l++) _mm512_store_si512(space + kStep * l, r[l]);
  memory_is_read();
  return {reinterpret_cast<const std::byte*>(space), kStep * kUnit};
}

// What sums of 16 rows begin with.
TRIREME_INLINE void keep_rows(const Product<float>& p, const float* keep, float* c, int64_t cols) {
  for (int64_t r = 0; r < kStrip; r++, c += p.ldc)
    for (int64_t j = 0; j < cols; j += 16)
      _mm512_storeu_ps(c + j, _mm512_mul_ps(_mm512_loadu_ps(c + j), _mm512_set1_ps(keep[r])));
}

// 16 rows by NT tiles of columns.
template <int NT>
TRIREME_INLINE void strip(const Product<float>& p, int64_t i, const std::byte* b, int64_t b_row, float* c) {
  if (p.add && p.keep) keep_rows(p, p.keep + i, c, 16 * NT);
  memory_is_read();
  const int64_t c_row = p.ldc * int64_t(sizeof(float));
  if (p.add) {
    _tile_loadd(0, c, c_row);
    if constexpr (NT > 1) _tile_loadd(1, c + 16, c_row);
    if constexpr (NT > 2) _tile_loadd(2, c + 32, c_row);
    if constexpr (NT > 3) _tile_loadd(3, c + 48, c_row);
  } else {
    _tile_zero(0);
    if constexpr (NT > 1) _tile_zero(1);
    if constexpr (NT > 2) _tile_zero(2);
    if constexpr (NT > 3) _tile_zero(3);
  }
  alignas(64) uint32_t space[4][kStep * kStep];  // in turn: a tile's load waits for the stores before it
  int64_t k = 0;
  for (; k + kStep <= p.k; k += kStep, b += kStep * b_row) {
    const Left a = left(p, i, k, kStep, space[k / kStep % 4]);
    _tile_loadd(4, a.data, a.row);
    _tile_loadd(6, b, b_row);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (NT > 1) {
      _tile_loadd(6, b + 64, b_row);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (NT > 2) {
      _tile_loadd(6, b + 128, b_row);
      _tile_dpbf16ps(2, 4, 6);
    }
    if constexpr (NT > 3) {
      _tile_loadd(6, b + 192, b_row);
      _tile_dpbf16ps(3, 4, 6);
    }
  }
  if (k < p.k) {
    const Left a = left(p, i, k, kHalfStep, space[k / kStep % 4]);
    _tile_loadd(5, a.data, a.row);
    _tile_loadd(7, b, b_row);
    _tile_dpbf16ps(0, 5, 7);
    if constexpr (NT > 1) {
      _tile_loadd(7, b + 64, b_row);
      _tile_dpbf16ps(1, 5, 7);
    }
    if constexpr (NT > 2) {
      _tile_loadd(7, b + 128, b_row);
      _tile_dpbf16ps(2, 5, 7);
    }
    if constexpr (NT > 3) {
      _tile_loadd(7, b + 192, b_row);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, c_row);
  if constexpr (NT > 1) _tile_stored(1, c + 16, c_row);
  if constexpr (NT > 2) _tile_stored(2, c + 32, c_row);
  if constexpr (NT > 3) _tile_stored(3, c + 48, c_row);
}

template <int NT>
__attribute__((noinline)) void panel(const Product<float>& p, const std::byte* b, int64_t b_row, float* c) {
  for (int64_t i = 0; i < p.m; i += kStrip) strip<NT>(p, i, b, b_row, c + i * p.ldc);
}

void product(const Product<float>& p) {
  for (int64_t j = 0; j < p.n; j += kPanel) {
    const int64_t width = std::min(kPanel, p.b_cols - j);
    const std::byte* b = p.b + (j * p.b_depth + p.b_first * width) * kUnit;
    switch (std::min(kPanel, p.n - j) / 16) {
      case 1:
        panel<1>(p, b, width * kUnit, p.c + j);
        break;
      case 2:
        panel<2>(p, b, width * kUnit, p.c + j);
        break;
      case 3:
        panel<3>(p, b, width * kUnit, p.c + j);
        break;
      default:
        panel<4>(p, b, width * kUnit, p.c + j);
    }
  }
}

}  // namespace

const Tiles<float>* tiles_amx() {
  static const Tiles<float> set = [] {
    Tiles<float> t = *tiles_bf16();
    t.product = product, t.begin = begin, t.end = end;
    return t;
  }();
  return tiles::kernels() ? &set : nullptr;
}

}  // namespace trireme::cpu::attention

#else  // another processor's compiler: no such instructions
namespace trireme::cpu::attention {
const Tiles<float>* tiles_amx() {
  return nullptr;
}
}  // namespace trireme::cpu::attention
#endif
