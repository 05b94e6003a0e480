// Dot products of few rows in bf16 with AVX512-BF16: pairs of products are added into f32. This file alone is
// compiled for that extension; nothing of it runs unless the processor was asked.
//
// The order of an element's sum is the same whatever tile it is in: pairs along K into 16 lanes, then lanes i
// and i + 8, i and i + 4, i and i + 2, i and i + 1. So its bits do not depend on the rows beside it.
#include "device/cpu/matmul_few_rows.h"

#ifdef __AVX512BF16__
#include <immintrin.h>

#ifndef __clang__  // g++ 12 takes the undefined lanes inside its own intrinsics for a mistake
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace trireme::cpu {
namespace {

#define TRIREME_INLINE inline __attribute__((always_inline))

// Lane 4 i + j of the result is the sum of v[4 j + i]: sixteen sums over lanes in 15 additions.
TRIREME_INLINE __m512 sum_each(const __m512 (&v)[16]) {
  __m512 four[4];
  for (int i = 0; i < 4; i++) {
    __m512 two[2];
    for (int j = 0; j < 2; j++) {
      __m512 x = v[4 * i + 2 * j], y = v[4 * i + 2 * j + 1];
      two[j] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xEE));
    }
    four[i] =
        _mm512_add_ps(_mm512_shuffle_f32x4(two[0], two[1], 0x88), _mm512_shuffle_f32x4(two[0], two[1], 0xDD));
  }
  __m512 pair[2];
  for (int i = 0; i < 2; i++) {
    __m512d x = _mm512_castps_pd(four[2 * i]), y = _mm512_castps_pd(four[2 * i + 1]);
    pair[i] =
        _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  }
  return _mm512_add_ps(_mm512_shuffle_ps(pair[0], pair[1], 0x88), _mm512_shuffle_ps(pair[0], pair[1], 0xDD));
}

TRIREME_INLINE __m512bh load(const uint16_t* p, __mmask32 mask) {
  return (__m512bh)_mm512_maskz_loadu_epi16(mask, p);
}

// R rows of a by C of b, R C <= 16, from row r0 and column j0 of the block on. The first rows fetch the next
// block's part of b (FewRows says why).
template <int R, int C>
TRIREME_INLINE void tile(const FewRows& f, int64_t r0, int64_t j0, float* sums) {
  const uint16_t* a = static_cast<const uint16_t*>(f.a) + r0 * f.a_row;
  const uint16_t* b = static_cast<const uint16_t*>(f.b) + j0 * f.b_row;
  __m512 acc[R][C];
  for (int r = 0; r < R; r++)
    for (int j = 0; j < C; j++) acc[r][j] = _mm512_setzero_ps();
  for (int64_t i = 0; i < f.k; i += 32) {
    const __mmask32 mask = f.k - i >= 32 ? ~__mmask32(0) : (__mmask32(1) << (f.k - i)) - 1;
    __m512bh right[C];
    for (int j = 0; j < C; j++) right[j] = load(b + j * f.b_row + i, mask);
    if (r0 == 0)
      for (int j = 0; j < C; j++) __builtin_prefetch(b + kFewCols * f.b_row + i * C + 32 * j);
    for (int r = 0; r < R; r++) {
      const __m512bh left = load(a + r * f.a_row + i, mask);
      for (int j = 0; j < C; j++) acc[r][j] = _mm512_dpbf16_ps(acc[r][j], left, right[j]);
    }
  }
  __m512 each[16];
  for (int n = 0; n < 16; n++) {
    int lane = n % 4 * 4 + n / 4;  // where sum_each puts it
    each[n] = lane < R * C ? acc[lane / C][lane % C] : _mm512_setzero_ps();
  }
  alignas(64) float flat[16];
  _mm512_store_ps(flat, sum_each(each));
  for (int r = 0; r < R; r++)
    for (int j = 0; j < C; j++) sums[(r0 + r) * kFewCols + j0 + j] = flat[r * C + j];
}

template <int C>
void columns(const FewRows& f, int64_t j0, float* sums) {
  int64_t r = 0;
  for (; r + 4 <= f.rows; r += 4) tile<4, C>(f, r, j0, sums);
  if (f.rows - r == 3) tile<3, C>(f, r, j0, sums);
  if (f.rows - r == 2) tile<2, C>(f, r, j0, sums);
  if (f.rows - r == 1) tile<1, C>(f, r, j0, sums);
}

// Sixteen chains of additions keep a core's multipliers busy: more columns at once for fewer rows.
void dots(const FewRows& f, int64_t cols, float* sums) {
  int64_t j = 0;
  if (f.rows == 1 && cols == 16) return tile<1, 16>(f, 0, 0, sums);
  if (f.rows == 2)
    for (; j + 8 <= cols; j += 8) tile<2, 8>(f, 0, j, sums);
  for (; j + 4 <= cols; j += 4) columns<4>(f, j, sums);
  for (; j < cols; j++) columns<1>(f, j, sums);
}

}  // namespace

FewRowsDots few_rows_dots_bf16() {
  static const bool has = __builtin_cpu_supports("avx512bf16") != 0;
  return has ? dots : nullptr;
}

}  // namespace trireme::cpu

#else

namespace trireme::cpu {
FewRowsDots few_rows_dots_bf16() {
  return nullptr;
}
}  // namespace trireme::cpu

#endif
