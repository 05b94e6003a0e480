// Tiles of products in tile registers. This file alone is compiled for AMX (and AVX512-BF16, which every such
// processor has); nothing of it runs unless processor and kernel were asked.
#include "device/cpu/gemm_tiles.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "device/cpu/avx512-inl.h"
#include "device/cpu/gemm-inl.h"

namespace trireme::cpu::tiles {
namespace {

// All eight tiles: 16 rows of 64 bytes.
struct alignas(64) Config {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

void begin() {
  static constexpr Config config;
  _tile_loadconfig(&config);
}
void end() {
  _tile_release();
  _mm_sfence();  // what went past the caches is seen by who comes next
}

// Rows of a tile from its sums to c; C of c, operands (the bias) bf16.
template <class C>
class Ending {
 public:
  TRIREME_INLINE explicit Ending(const gemm::Finish& f)
      : f_(f), mask_{mask16(f.cols), mask16(f.cols - 16)}, cols_(mask32(f.cols)) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++)
      bias_[j] =
          f.bias ? gemm::load(reinterpret_cast<const bf16*>(f.bias) + 16 * j, mask_[j]) : _mm512_setzero_ps();
  }
  TRIREME_INLINE void row(int64_t r) const {
    __m512 v[2];
    C* c = reinterpret_cast<C*>(f_.c + r * f_.c_row);
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
      v[j] = _mm512_add_ps(_mm512_load_ps(f_.sums + r * kPanel + 16 * j), bias_[j]);
      if (f_.residual)
        v[j] = _mm512_add_ps(
            v[j],
            gemm::load(reinterpret_cast<const C*>(f_.residual + r * f_.residual_row) + 16 * j, mask_[j]));
      if (f_.accumulate) v[j] = _mm512_add_ps(v[j], gemm::load(c + 16 * j, mask_[j]));
    }
    if constexpr (sizeof(C) == 4) {
      _mm512_mask_storeu_ps(c, mask_[0], v[0]), _mm512_mask_storeu_ps(c + 16, mask_[1], v[1]);
    } else {
      const __m512i line = (__m512i)_mm512_cvtne2ps_pbh(v[1], v[0]);
      f_.past_caches ? _mm512_stream_si512(reinterpret_cast<__m512i*>(c), line)
                     : _mm512_mask_storeu_epi16(c, cols_, line);
    }
  }

 private:
  const gemm::Finish f_;
  const __mmask16 mask_[2];
  const __mmask32 cols_;
  __m512 bias_[2];
};

template <class C>
void finish(const gemm::Finish& f) {
  const Ending<C> ending(f);
  for (int64_t r = 0; r < f.rows; r++) ending.row(r);
}

// The compiler does not see that tile loads read memory.
TRIREME_INLINE void memory_is_read() {
  asm volatile("" ::: "memory");
}

// Tiles 0 to 3: sums; 4, 5: rows of a; 6, 7: columns of b.
TRIREME_INLINE void load_sums(const float* from, int64_t ld) {
  if (!from) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    return;
  }
  const int64_t row = 4 * ld;
  _tile_loadd(0, from, row);
  _tile_loadd(1, from + 16, row);
  _tile_loadd(2, from + 16 * ld, row);
  _tile_loadd(3, from + 16 * ld + 16, row);
}
TRIREME_INLINE void step(const std::byte* a, const std::byte* b) {
  _tile_loadd(4, a, 64);
  _tile_loadd(6, b, 64);
  _tile_loadd(7, b + kStepBytes / 2, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(5, a + kStepBytes / 2, 64);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}
TRIREME_INLINE void store_sums(float* to) {
  _tile_stored(0, to, 4 * kPanel);
  _tile_stored(1, to + 16, 4 * kPanel);
  _tile_stored(2, to + 16 * kPanel, 4 * kPanel);
  _tile_stored(3, to + 16 * kPanel + 16, 4 * kPanel);
}

template <class C>
__attribute__((noinline)) void multiply(const Tile& t, const gemm::Finish* before) {
  memory_is_read();
  load_sums(t.from, t.ld_from);
  const std::byte *a = t.a, *b = t.b;
  const int64_t steps = t.steps;
  gemm::Asking soon(t.soon, t.wanted);
  const int64_t asked = (gemm::Asking::count(t.soon, t.wanted) + steps - 1) / steps;
  auto next = [&]() __attribute__((always_inline)) {
    step(a, b);
    a += kStepBytes, b += kStepBytes;
    for (int64_t i = 0; i < asked && soon.more(); i++) soon.ask();
  };
  int64_t s = 0;
  if (before) {
    const Ending<C> ending(*before);
    const int64_t rows = before->rows, each = (rows + steps - 1) / steps;
    for (int64_t r = 0; r < rows; s++) {
      next();
      for (const int64_t stop = std::min(rows, r + each); r < stop; r++) ending.row(r);
    }
  }
  for (; s < steps; s++) next();
  store_sums(t.sums);
}

// ---- packing ----

TRIREME_INLINE __m512i load_row(const std::byte* p, __mmask32 seen) {
  return _mm512_maskz_loadu_epi16(seen, p);
}
TRIREME_INLINE void store_line(std::byte* to, __m512i v) {
  _mm512_store_si512(to, v);
}

// 16 units, two values of k each, of 16 columns: 16 rows of b^T, transposed.
void pack_transposed(const std::byte* src, int64_t row, int64_t cols, int64_t depth, std::byte* dst) {
  for (int64_t k = 0; k < depth; k += kStep, src += 2 * kStep) {
    const __mmask32 seen = mask32(depth - k);
    for (int64_t j = 0; j < kPanel; j += 16, dst += kStepBytes / 2) {
      __m512i r[16];
#pragma GCC unroll 16
      for (int l = 0; l < 16; l++)
        r[l] = j + l < cols ? load_row(src + (j + l) * row, seen) : _mm512_setzero_si512();
      transpose(r);
#pragma GCC unroll 16
      for (int l = 0; l < 16; l++) store_line(dst + 64 * l, r[l]);
    }
  }
}

// Rows k and k + 1 of b as units: 16 columns to the first tile of a panel, 16 to the second.
void pack_rows(const std::byte* src, int64_t row, int64_t cols, int64_t depth, std::byte* dst,
               int64_t panel) {
  for (int64_t k = 0; k < depth; k += kStep, src += kStep * row, dst += kStepBytes)
    for (int64_t j = 0; j < cols; j += kPanel) {
      const __mmask32 seen = mask32(cols - j);
      const std::byte* from = src + 2 * j;
      std::byte* to = dst + j / kPanel * panel;
      for (int64_t u = 0; u < 16; u++, from += 2 * row) {
        const int64_t left = depth - k - 2 * u;
        const gemm::Pair x = gemm::interleave(left > 0 ? load_row(from, seen) : _mm512_setzero_si512(),
                                              left > 1 ? load_row(from + row, seen) : _mm512_setzero_si512());
        store_line(to + 64 * u, x.low), store_line(to + kStepBytes / 2 + 64 * u, x.high);
      }
    }
}

void pack_a(const std::byte* src, int64_t row, int64_t rows, int64_t depth, std::byte* dst, int64_t strip) {
  for (int64_t i = 0; i < rows; i += kStrip, src += kStrip * row, dst += strip)
    for (int64_t k = 0; k < depth; k += kStep) {
      const __mmask32 seen = mask32(depth - k);
      std::byte* to = dst + k / kStep * kStepBytes;
      for (int64_t r = 0; r < kStrip; r++)
        store_line(to + 64 * r,
                   i + r < rows ? load_row(src + r * row + 2 * k, seen) : _mm512_setzero_si512());
    }
}

// Columns of a^T as rows: pairs of its rows as units of 32 columns, transposed. All strips go along together,
// so that a row of a^T is read as far as it is wanted.
void pack_a_transposed(const std::byte* src, int64_t row, int64_t rows, int64_t depth, std::byte* dst,
                       int64_t strip) {
  for (int64_t k = 0; k < depth; k += kStep, src += kStep * row, dst += kStepBytes)
    for (int64_t i = 0; i < rows; i += kStrip) {
      const __mmask32 seen = mask32(rows - i);
      const std::byte* from = src + 2 * i;
      std::byte* to = dst + i / kStrip * strip;
      // Units of pairs of rows by 128-bit pieces: columns 0-3, 8-11, 16-19, 24-27 | the four behind each.
      __m512i low[16], high[16];
#pragma GCC unroll 16
      for (int u = 0; u < 16; u++, from += 2 * row) {
        const int64_t left = depth - k - 2 * u;
        const __m512i even = left > 0 ? load_row(from, seen) : _mm512_setzero_si512();
        const __m512i odd = left > 1 ? load_row(from + row, seen) : _mm512_setzero_si512();
        low[u] = _mm512_unpacklo_epi16(even, odd), high[u] = _mm512_unpackhi_epi16(even, odd);
      }
      const auto column = [](int l) { return l / 4 * 8 + l % 4; };
      transpose(low);
#pragma GCC unroll 16
      for (int l = 0; l < 16; l++) store_line(to + 64 * column(l), low[l]);
      transpose(high);
#pragma GCC unroll 16
      for (int l = 0; l < 16; l++) store_line(to + 64 * (column(l) + 4), high[l]);
    }
}

// Does the processor have them, and will the kernel keep them for this process? It wants to be asked, once.
bool ready() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;  // leaf 7, EDX
  constexpr int kAskPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (kBf16 | kTile)) != (kBf16 | kTile)) return false;
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16") && syscall(SYS_arch_prctl, kAskPermission, kTileData) == 0;
}

}  // namespace

const Kernels* kernels() {
  static const bool able = ready();
  static constexpr Kernels all = {
      begin,           end,       multiply<bf16>, multiply<float>,  finish<bf16>, finish<float>,
      pack_transposed, pack_rows, pack_a,         pack_a_transposed};
  return able ? &all : nullptr;
}

}  // namespace trireme::cpu::tiles

#else  // another processor's compiler: no such instructions
namespace trireme::cpu::tiles {
const Kernels* kernels() {
  return nullptr;
}
}  // namespace trireme::cpu::tiles
#endif
