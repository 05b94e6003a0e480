// Tiles of our own matrix product with AVX-512 and AVX512-BF16: 6 x 64 sums in 24 registers. Each step loads
// four vectors of b and broadcasts six units of a for 24 multiply-adds, so the two arithmetic units never
// wait for a load. This file alone is compiled for these extensions; nothing of it runs unless the processor
// was asked. What is of f32 has AVX-512's instructions only.
#include "device/cpu/gemm.h"

#ifdef __AVX512BF16__
#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "device/cpu/avx512-inl.h"
#include "device/cpu/gemm-inl.h"

namespace trireme::cpu::gemm {
namespace {

template <class T>
TRIREME_INLINE __m512 multiply_add(__m512 sum, uint32_t a, __m512i b) {
  if constexpr (std::is_same_v<T, bf16>)
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(int(a)), (__m512bh)b);
  else
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32(int(a))), _mm512_castsi512_ps(b), sum);
}

template <class U>
TRIREME_INLINE uint32_t unit_at(const std::byte* p) {
  U u;
  std::memcpy(&u, p, sizeof u);
  return u;
}

// One step: unit `a(i)` of each row against a line of the panel.
template <class T, int MR, class A>
TRIREME_INLINE void step(__m512 (&sum)[MR][4], const std::byte* b, const A& a) {
  __m512i right[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) right[j] = _mm512_load_si512(b + 64 * j);
#pragma GCC unroll 6
  for (int i = 0; i < MR; i++) {
    uint32_t left = a(i);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) sum[i][j] = multiply_add<T>(sum[i][j], left, right[j]);
  }
}

template <class T, int MR>
TRIREME_INLINE void sums_of(const Tile& t, __m512 (&sum)[MR][4]) {
#pragma GCC unroll 6
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++)
      sum[i][j] = t.from ? _mm512_loadu_ps(t.from + i * t.ld_from + 16 * j) : _mm512_setzero_ps();
  const std::byte *row[MR], *b = t.b;
#pragma GCC unroll 6
  for (int i = 0; i < MR; i++) row[i] = t.a + i * t.a_row;
  const int64_t end = t.units * t.a_step, by = t.a_step;
  int64_t at = 0;
  auto steps_to = [&](int64_t stop) __attribute__((always_inline)) {
    for (; at < stop; at += by, b += 4 * kPanel)
      step<T, MR>(
          sum, b, [&](int i) __attribute__((always_inline)) { return unit_at<uint32_t>(row[i] + at); });
  };
  if (t.wanted) {  // all lines within the first three quarters of the steps
    const int64_t few = std::max<int64_t>(1, t.units * 3 / (4 * Asking::count(t.soon, t.wanted))) * by;
    for (Asking soon(t.soon, t.wanted); soon.more() && at + few <= end; steps_to(at + few)) soon.ask();
  }
  steps_to(end);
  if (t.half)
    step<T, MR>(
        sum, b, [&](int i) __attribute__((always_inline)) { return unit_at<uint16_t>(row[i] + at); });
}

template <class T, int MR>
__attribute__((noinline)) void multiply(const Tile& t) {
  __m512 sum[MR][4];
  sums_of<T>(t, sum);
  float* out = t.sums;
  const int64_t ld = t.ld_sums;
#pragma GCC unroll 6
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) _mm512_storeu_ps(out + i * ld + 16 * j, sum[i][j]);
}

// ---- packing, in units ----

// Panel from rows of b^T: 16 columns and 16 units at a time, along the 16 rows, so that hardware has 16
// streams of memory to follow and not 64. `depth` elements a row; the last unit may be half.
template <class T>
void pack_transposed(const std::byte* src, int64_t row, int64_t cols, int64_t depth, std::byte* dst) {
  constexpr int64_t kGroup = 4 / int64_t(sizeof(T)), kSoon = 512;  // bytes of a row
  const int64_t units = (depth + kGroup - 1) / kGroup;
  for (int64_t j = 0; j < kPanel; j += 16) {
    for (int64_t u = 0; u < units; u += 16) {
      // Lanes are 16-bit so that one mask serves both types.
      const __mmask32 seen = mask32((depth * int64_t(sizeof(T)) - 4 * u) / 2);
      const int64_t n = std::min<int64_t>(16, units - u);
      __m512i r[16];
      const std::byte* from = src + j * row + 4 * u;
      if (j + 16 <= cols && n == 16 && seen == ~__mmask32(0)) {
#pragma GCC unroll 16
        for (int l = 0; l < 16; l++) __builtin_prefetch(from + l * row + kSoon);
#pragma GCC unroll 16
        for (int l = 0; l < 16; l++) r[l] = _mm512_loadu_si512(from + l * row);
      } else {
#pragma GCC unroll 16
        for (int l = 0; l < 16; l++)
          r[l] = j + l < cols ? _mm512_maskz_loadu_epi16(seen, from + l * row) : _mm512_setzero_si512();
      }
      transpose(r);
      std::byte* to = dst + (u * kPanel + j) * 4;
      if (n == 16) {
#pragma GCC unroll 16
        for (int l = 0; l < 16; l++) _mm512_store_si512(to + l * kPanel * 4, r[l]);
      } else {
        for (int64_t l = 0; l < n; l++) _mm512_store_si512(to + l * kPanel * 4, r[l]);
      }
    }
  }
}

void pack_rows_bf16(const std::byte* src, int64_t row, int64_t cols, int64_t depth, std::byte* dst) {
  const __mmask32 m0 = mask32(cols), m1 = mask32(cols - 32);
  for (int64_t k = 0; k < depth; k += 2, src += 2 * row, dst += 4 * kPanel) {
    const bool pair = k + 1 < depth;
    const std::byte* next = src + (pair ? row : 0);
    const __mmask32 n0 = pair ? m0 : 0, n1 = pair ? m1 : 0;
    Pair a = interleave(_mm512_maskz_loadu_epi16(m0, src), _mm512_maskz_loadu_epi16(n0, next));
    Pair b = interleave(_mm512_maskz_loadu_epi16(m1, src + 64), _mm512_maskz_loadu_epi16(n1, next + 64));
    _mm512_store_si512(dst, a.low), _mm512_store_si512(dst + 64, a.high);
    _mm512_store_si512(dst + 128, b.low), _mm512_store_si512(dst + 192, b.high);
  }
}
void pack_rows_f32(const std::byte* src, int64_t row, int64_t cols, int64_t depth, std::byte* dst) {
  for (int64_t k = 0; k < depth; k++, src += row, dst += 4 * kPanel)
    for (int64_t j = 0; j < 4; j++)
      _mm512_store_si512(dst + 64 * j, _mm512_maskz_loadu_epi32(mask16(cols - 16 * j), src + 64 * j));
}

// 48 columns, that is 8 strips, of one step: units 6s .. 6s + 5 go to strip s, with two more behind them that
// the next step's store overwrites.
TRIREME_INLINE void store_strips(__m512i x0, __m512i x1, __m512i x2, std::byte* to, int64_t strip) {
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  auto put = [&](int s, __m512i v) __attribute__((always_inline)) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + s * strip), _mm512_castsi512_si256(v));
  };
  auto from = [&](int first) __attribute__((always_inline)) {
    return _mm512_add_epi32(lane, _mm512_set1_epi32(first));
  };
  put(0, x0);
  put(1, _mm512_permutexvar_epi32(from(6), x0));
  put(2, _mm512_permutex2var_epi32(x0, from(12), x1));
  put(3, _mm512_permutexvar_epi32(from(2), x1));
  put(4, _mm512_permutex2var_epi32(x1, from(8), x2));
  put(5, _mm512_permutex2var_epi32(x1, from(14), x2));
  put(6, _mm512_permutexvar_epi32(from(4), x2));
  put(7, _mm512_permutexvar_epi32(from(10), x2));
}

template <class T>
void pack_strips(const std::byte* src, int64_t row, int64_t rows, int64_t depth, std::byte* dst) {
  constexpr int64_t kGroup = 4 / int64_t(sizeof(T)), kAcross = 8 * kStrip;
  const int64_t units = (depth + kGroup - 1) / kGroup, strip = strip_bytes(units);
  for (int64_t i = 0; i < rows; i += kAcross, dst += 8 * strip) {
    const std::byte* from = src + i * int64_t(sizeof(T));
    const int64_t n = std::min(kAcross, rows - i);
    // Where nothing comes after to overwrite the excess, and at a narrow edge, strips go through a small
    // copy.
    alignas(64) std::byte edge[8 * 64];
    for (int64_t u = 0; u < units; u++, from += kGroup * row) {
      __builtin_prefetch(from + 24 * row), __builtin_prefetch(from + 24 * row + 64);
      __m512i x[3];
      if constexpr (std::is_same_v<T, bf16>) {
        const bool pair = 2 * u + 1 < depth;
        if (pair) __builtin_prefetch(from + 25 * row), __builtin_prefetch(from + 25 * row + 64);
        const std::byte* next = from + (pair ? row : 0);
#pragma GCC unroll 3
        for (int j = 0; j < 3; j++) {
          const __mmask16 m = mask16(n - 16 * j);
          __m512i even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, from + 32 * j));
          __m512i odd = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(pair ? m : 0, next + 32 * j));
          x[j] = _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
        }
      } else {
#pragma GCC unroll 3
        for (int j = 0; j < 3; j++) x[j] = _mm512_maskz_loadu_epi32(mask16(n - 16 * j), from + 64 * j);
      }
      std::byte* to = dst + u * kStrip * 4;
      if (n == kAcross && u + 1 < units) {
        store_strips(x[0], x[1], x[2], to, strip);
      } else {
        store_strips(x[0], x[1], x[2], edge, 64);
        for (int64_t s = 0; s * kStrip < n; s++) std::memcpy(to + s * strip, edge + 64 * s, kStrip * 4);
      }
    }
  }
}

// ---- epilogue ----

TRIREME_INLINE void store(float* p, __mmask16 m, __m512 v) {
  _mm512_mask_storeu_ps(p, m, v);
}
TRIREME_INLINE void store(bf16* p, __mmask16 m, __m512 v) {
  _mm256_mask_storeu_epi16(p, m, (__m256i)_mm512_cvtneps_pbh(v));
}

TRIREME_INLINE void store_row(float* p, const __m512 (&v)[4]) {
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) _mm512_storeu_ps(p + 16 * j, v[j]);
}
TRIREME_INLINE void store_row(bf16* p, const __m512 (&v)[4]) {
  _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(v[1], v[0]));
  _mm512_storeu_si512(p + 32, (__m512i)_mm512_cvtne2ps_pbh(v[3], v[2]));
}
template <class C>
TRIREME_INLINE void add_row(__m512 (&v)[4], const std::byte* row) {
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) v[j] = _mm512_add_ps(v[j], load(reinterpret_cast<const C*>(row) + 16 * j));
}

// A tile of 64 columns from its sums to c without a stop in memory: with 192 units (a depth of 384 in bf16)
// storing the sums and reading them again was 5 % of the time. T of the operands (the bias), C of c.
template <class T, class C, int MR>
__attribute__((noinline)) void multiply_to(const Tile& t, const Finish& f) {
  __m512 sum[MR][4], bias[4] = {};
  sums_of<T>(t, sum);
  if (f.bias) add_row<T>(bias, f.bias);
  std::byte* c = f.c;
  const std::byte* residual = f.residual;
  const int64_t c_row = f.c_row, residual_row = f.residual_row;
  const bool accumulate = f.accumulate;
#pragma GCC unroll 6
  for (int i = 0; i < MR; i++) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) sum[i][j] = _mm512_add_ps(sum[i][j], bias[j]);
    if (residual) add_row<C>(sum[i], residual + i * residual_row);
    if (accumulate) add_row<C>(sum[i], c + i * c_row);
    store_row(reinterpret_cast<C*>(c + i * c_row), sum[i]);
  }
}

// Of tiles at the right edge.
template <class T, class C>
void finish(const Finish& f) {
  for (int64_t j = 0; j < f.cols; j += 16) {
    const __mmask16 m = mask16(f.cols - j);
    const __m512 bias = f.bias ? load(reinterpret_cast<const T*>(f.bias) + j, m) : _mm512_setzero_ps();
    for (int64_t r = 0; r < f.rows; r++) {
      C* c = reinterpret_cast<C*>(f.c + r * f.c_row) + j;
      __m512 v = _mm512_add_ps(_mm512_loadu_ps(f.sums + r * f.ld_sums + j), bias);
      if (f.residual)
        v = _mm512_add_ps(v, load(reinterpret_cast<const C*>(f.residual + r * f.residual_row) + j, m));
      if (f.accumulate) v = _mm512_add_ps(v, load(c, m));
      store(c, m, v);
    }
  }
}

template <class T>
constexpr Kernels kernels_of(void (*pack_rows)(const std::byte*, int64_t, int64_t, int64_t, std::byte*)) {
  return {sizeof(T),
          4 / sizeof(T),
          6144,  // a panel of less than half of L2, 1 MB on this family
          2048,
          384,
          {multiply<T, 1>, multiply<T, 2>, multiply<T, 3>, multiply<T, 4>, multiply<T, 5>, multiply<T, 6>},
          {multiply_to<T, T, 1>, multiply_to<T, T, 2>, multiply_to<T, T, 3>, multiply_to<T, T, 4>,
           multiply_to<T, T, 5>, multiply_to<T, T, 6>},
          {multiply_to<T, float, 1>, multiply_to<T, float, 2>, multiply_to<T, float, 3>,
           multiply_to<T, float, 4>, multiply_to<T, float, 5>, multiply_to<T, float, 6>},
          pack_strips<T>,
          pack_transposed<T>,
          pack_rows,
          finish<T, T>,
          finish<T, float>};
}

}  // namespace

const Kernels* avx512_kernels(DType t) {
  static constexpr Kernels bf = kernels_of<bf16>(pack_rows_bf16), f = kernels_of<float>(pack_rows_f32);
  return t == DType::bf16 ? &bf : t == DType::f32 ? &f : nullptr;
}

}  // namespace trireme::cpu::gemm

#else  // another processor's compiler: no such instructions
namespace trireme::cpu::gemm {
const Kernels* avx512_kernels(DType) {
  return nullptr;
}
}  // namespace trireme::cpu::gemm
#endif
