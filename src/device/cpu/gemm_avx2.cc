// The tiles of gemm_packed.h: 4 x 24 sums in 12 registers, a row of b in three, one value of a in the last.
// This file alone is compiled for AVX2 and FMA; nothing of it runs unless the processor was asked
// (require_processor()).
#include "device/cpu/gemm_packed.h"

#ifdef __AVX2__
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#define TRIREME_INLINE inline __attribute__((always_inline))

namespace trireme::cpu::packed {
namespace {

constexpr int kVectors = int(kPanel / 8);
constexpr int64_t kLine = 16;  // floats
using Sums = __m256[kStrip][kVectors];

TRIREME_INLINE __m256i lanes_below(int64_t n) {  // n from below 0 to beyond 8
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(std::clamp<int64_t>(n, 0, 8))),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// sum += left * right. Spelled out: left to themselves, compilers move sums between registers.
TRIREME_INLINE void multiply_add(__m256& sum, __m256 left, __m256 right) {
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(left), "x"(right));
}

// One strip and one panel.
TRIREME_INLINE void sums_of(const float* a, const float* b, int64_t steps, Sums& sum) {
#pragma GCC unroll 4
  for (int i = 0; i < kStrip; i++)
#pragma GCC unroll 3
    for (int j = 0; j < kVectors; j++) sum[i][j] = _mm256_setzero_ps();
  for (const float* end = a + steps * kStrip; a != end; a += kStep * kStrip, b += kStep * kPanel) {
#pragma GCC unroll 8
    for (int64_t u = 0; u < kStep; u++) {
      __m256 right[kVectors];
#pragma GCC unroll 3
      for (int j = 0; j < kVectors; j++) right[j] = _mm256_load_ps(b + u * kPanel + 8 * j);
#pragma GCC unroll 4
      for (int i = 0; i < kStrip; i++) {
        const __m256 left = _mm256_broadcast_ss(a + u * kStrip + i);
#pragma GCC unroll 3
        for (int j = 0; j < kVectors; j++) multiply_add(sum[i][j], left, right[j]);
      }
    }
  }
}

// What a tile's end reads and writes: asked for before its sums, for c is cold in a step.
TRIREME_INLINE void ask_for(const float* rows, int64_t ld) {
#pragma GCC unroll 4
  for (int i = 0; i < kStrip; i++, rows += ld) {
    _mm_prefetch(reinterpret_cast<const char*>(rows), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(rows + kPanel - 1), _MM_HINT_T0);
  }
}

TRIREME_INLINE void add_rows(Sums& sum, const float* rows, int64_t ld) {
#pragma GCC unroll 4
  for (int i = 0; i < kStrip; i++)
#pragma GCC unroll 3
    for (int j = 0; j < kVectors; j++)
      sum[i][j] = _mm256_add_ps(sum[i][j], _mm256_loadu_ps(rows + i * ld + 8 * j));
}

__attribute__((noinline)) void tile(const Panel& t, const float* a, float* c, const float* residual) {
  Sums sum;
  ask_for(c, t.ld_c);
  if (residual) ask_for(residual, t.ld_residual);
  sums_of(a, t.b, t.steps, sum);
  if (t.bias) add_rows(sum, t.bias, 0);
  if (residual) add_rows(sum, residual, t.ld_residual);
  if (t.add) add_rows(sum, c, t.ld_c);
#pragma GCC unroll 4
  for (int i = 0; i < kStrip; i++)
#pragma GCC unroll 3
    for (int j = 0; j < kVectors; j++) _mm256_storeu_ps(c + i * t.ld_c + 8 * j, sum[i][j]);
}

// Of tiles at the lower and the right edge.
__attribute__((noinline)) void edge_tile(const Panel& t, const float* a, float* c, const float* residual,
                                         int64_t rows) {
  Sums sum;
  alignas(32) float sums[kStrip][kPanel];
  sums_of(a, t.b, t.steps, sum);
  for (int i = 0; i < kStrip; i++)
    for (int j = 0; j < kVectors; j++) _mm256_store_ps(sums[i] + 8 * j, sum[i][j]);
  for (int64_t i = 0; i < rows; i++, c += t.ld_c)
    for (int64_t j = 0; j < t.cols; j++) {
      float v = sums[i][j];
      if (t.bias) v += t.bias[j];
      if (residual) v += residual[i * t.ld_residual + j];
      c[j] = t.add ? v + c[j] : v;
    }
}

// R rows (one or two strips) and the V vectors that hold all columns of a narrow last panel: 8 sums in either
// case, where a tile of 4 x 24 would mostly multiply zeros. Sums are the same chains of additions.
template <int R, int V>
TRIREME_INLINE void narrow_sums(const float* a, const float* b, int64_t steps, int64_t strip,
                                __m256 (&sum)[R][V]) {
#pragma GCC unroll 8
  for (int i = 0; i < R; i++)
#pragma GCC unroll 2
    for (int j = 0; j < V; j++) sum[i][j] = _mm256_setzero_ps();
  for (const float* end = a + steps * kStrip; a != end; a += kStep * kStrip, b += kStep * kPanel) {
#pragma GCC unroll 8
    for (int64_t u = 0; u < kStep; u++) {
      __m256 right[V];
#pragma GCC unroll 2
      for (int j = 0; j < V; j++) right[j] = _mm256_load_ps(b + u * kPanel + 8 * j);
#pragma GCC unroll 8
      for (int i = 0; i < R; i++) {
        const __m256 left = _mm256_broadcast_ss(a + (i < kStrip ? 0 : strip) + u * kStrip + i % kStrip);
#pragma GCC unroll 2
        for (int j = 0; j < V; j++) multiply_add(sum[i][j], left, right[j]);
      }
    }
  }
}
template <int R, int V>
__attribute__((noinline)) void narrow_tile(const Panel& t, const float* a, float* c, const float* residual) {
  __m256 sum[R][V];
  narrow_sums<R, V>(a, t.b, t.steps, strip_floats(t.steps), sum);
  __m256i seen[V];
#pragma GCC unroll 2
  for (int j = 0; j < V; j++) seen[j] = lanes_below(t.cols - 8 * j);
  if (t.bias)
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 2
      for (int j = 0; j < V; j++)
        sum[i][j] = _mm256_add_ps(sum[i][j], _mm256_maskload_ps(t.bias + 8 * j, seen[j]));
  if (residual)
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 2
      for (int j = 0; j < V; j++)
        sum[i][j] =
            _mm256_add_ps(sum[i][j], _mm256_maskload_ps(residual + i * t.ld_residual + 8 * j, seen[j]));
  if (t.add)
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 2
      for (int j = 0; j < V; j++)
        sum[i][j] = _mm256_add_ps(sum[i][j], _mm256_maskload_ps(c + i * t.ld_c + 8 * j, seen[j]));
  if (t.cols == 8 * V) {  // masked stores are slow on some processors
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 2
      for (int j = 0; j < V; j++) _mm256_storeu_ps(c + i * t.ld_c + 8 * j, sum[i][j]);
    return;
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; i++)
#pragma GCC unroll 2
    for (int j = 0; j < V; j++) _mm256_maskstore_ps(c + i * t.ld_c + 8 * j, seen[j], sum[i][j]);
}

// The rows of the panel that narrow tiles take; the rest, fewer than a tile's, is left to edge tiles.
int64_t multiply_narrow(const Panel& t) {
  if (t.cols > 16) return 0;
  const int64_t tile_rows = t.cols > 8 ? kStrip : 2 * kStrip;
  const int64_t strip = strip_floats(t.steps);
  int64_t i = 0;
  for (; i + tile_rows <= t.rows; i += tile_rows) {
    const float* a = t.a + i / kStrip * strip;
    const float* residual = t.residual ? t.residual + i * t.ld_residual : nullptr;
    if (t.cols > 8)
      narrow_tile<kStrip, 2>(t, a, t.c + i * t.ld_c, residual);
    else
      narrow_tile<2 * kStrip, 1>(t, a, t.c + i * t.ld_c, residual);
  }
  return i;
}

void multiply(const Panel& whole) {
  Panel t = whole;
  if (const int64_t done = multiply_narrow(whole); done > 0) {
    t.rows -= done;
    t.a += done / kStrip * strip_floats(t.steps);
    t.c += done * t.ld_c;
    if (t.residual) t.residual += done * t.ld_residual;
    if (t.rows == 0) return;
  }
  const float *a = t.a, *residual = t.residual;
  float* c = t.c;
  // Of the panel behind this one a share with each strip.
  const int64_t lines = t.more ? panel_floats(t.steps) / kLine : 0, strips = (t.rows + kStrip - 1) / kStrip;
  const int64_t share = (lines + strips - 1) / strips;
  const float *soon = t.b + panel_floats(t.steps), *end = soon + lines * kLine;
  for (int64_t i = 0; i < t.rows; i += kStrip, a += strip_floats(t.steps), c += kStrip * t.ld_c) {
    for (const float* last = std::min(end, soon + share * kLine); soon < last; soon += kLine)
      _mm_prefetch(reinterpret_cast<const char*>(soon), _MM_HINT_T0);
    if (i + kStrip <= t.rows && t.cols == kPanel)
      tile(t, a, c, residual);
    else
      edge_tile(t, a, c, residual, std::min(kStrip, t.rows - i));
    if (residual) residual += kStrip * t.ld_residual;
  }
}

// ---- packing ----

constexpr int64_t kSoon = 128, kRowsSoon = 16;  // what is asked for ahead: floats of a row; rows

int64_t steps_of(int64_t depth) {
  return (depth + kStep - 1) / kStep * kStep;
}

// Row i of 8 rows afterwards holds column i of them.
TRIREME_INLINE void transpose(__m256 (&r)[8]) {
  __m256 t[8], u[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {  // u[4i + c]: of rows 4i..4i+3 columns c, c + 4
    u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; c++) {
    r[c] = _mm256_permute2f128_ps(u[c], u[4 + c], 0x20);
    r[4 + c] = _mm256_permute2f128_ps(u[c], u[4 + c], 0x31);
  }
}

// 8 steps of 4 rows, as [8][4].
TRIREME_INLINE void store_strip(const __m256 (&r)[kStrip], float* to) {
  const __m256 low0 = _mm256_unpacklo_ps(r[0], r[1]), high0 = _mm256_unpackhi_ps(r[0], r[1]),
               low1 = _mm256_unpacklo_ps(r[2], r[3]), high1 = _mm256_unpackhi_ps(r[2], r[3]);
  // Steps 0 and 4, 1 and 5, 2 and 6, 3 and 7.
  const __m256 u0 = _mm256_shuffle_ps(low0, low1, 0x44), u1 = _mm256_shuffle_ps(low0, low1, 0xee),
               u2 = _mm256_shuffle_ps(high0, high1, 0x44), u3 = _mm256_shuffle_ps(high0, high1, 0xee);
  _mm256_store_ps(to, _mm256_permute2f128_ps(u0, u1, 0x20));
  _mm256_store_ps(to + 8, _mm256_permute2f128_ps(u2, u3, 0x20));
  _mm256_store_ps(to + 16, _mm256_permute2f128_ps(u0, u1, 0x31));
  _mm256_store_ps(to + 24, _mm256_permute2f128_ps(u2, u3, 0x31));
}

// N rows from column u on, at most 8 columns of each; zeros beyond rows and depth.
template <int N>
TRIREME_INLINE void load_rows(const float* src, int64_t ld, int64_t rows, int64_t left, __m256 (&r)[N]) {
  if (rows >= N && left >= 8) {
#pragma GCC unroll 8
    for (int i = 0; i < N; i++) r[i] = _mm256_loadu_ps(src + i * ld);
    return;
  }
  const __m256i seen = lanes_below(left);
#pragma GCC unroll 8
  for (int i = 0; i < N; i++) r[i] = i < rows ? _mm256_maskload_ps(src + i * ld, seen) : _mm256_setzero_ps();
}
template <int N>
TRIREME_INLINE void ask_ahead(const float* src, int64_t ld, int64_t rows) {
  if (rows < N) return;
#pragma GCC unroll 8
  for (int i = 0; i < N; i++) _mm_prefetch(reinterpret_cast<const char*>(src + i * ld + kSoon), _MM_HINT_T0);
}

void pack_a(const float* src, int64_t ld, int64_t rows, int64_t depth, float* dst) {
  for (int64_t i = 0; i < rows; i += kStrip, src += kStrip * ld, dst += strip_floats(steps_of(depth)))
    for (int64_t u = 0; u < depth; u += kStep) {
      __m256 r[kStrip];
      if (u % 16 == 0) ask_ahead<kStrip>(src + u, ld, rows - i);
      load_rows<kStrip>(src + u, ld, rows - i, depth - u, r);
      store_strip(r, dst + u * kStrip);
    }
}

void pack_b_transposed(const float* src, int64_t ld, int64_t cols, int64_t depth, float* dst) {
  const int64_t panel = panel_floats(steps_of(depth));
  for (int64_t first = 0; first < cols; first += kPanel, dst += panel)
    for (int64_t j = 0; j < kPanel; j += 8) {
      const float* from = src + (first + j) * ld;
      const int64_t rows = std::max<int64_t>(0, cols - first - j);
      for (int64_t u = 0; u < depth; u += kStep) {
        __m256 r[8];
        if (u % 16 == 0) ask_ahead<8>(from + u, ld, rows);
        load_rows<8>(from + u, ld, rows, depth - u, r);
        transpose(r);
#pragma GCC unroll 8
        for (int l = 0; l < 8; l++) _mm256_store_ps(dst + (u + l) * kPanel + j, r[l]);
      }
    }
}

// Steps from `depth` on to the next multiple of kStep, of strips or panels `apart` floats from each other.
void zero_steps(float* dst, int64_t apart, int64_t count, int64_t step, int64_t depth) {
  for (int64_t u = depth; u % kStep != 0; u++)
    for (int64_t s = 0; s < count; s++) std::memset(dst + s * apart + u * step, 0, size_t(step) * 4);
}

void pack_a_transposed(const float* src, int64_t ld, int64_t rows, int64_t depth, float* dst) {
  const int64_t strip = strip_floats(steps_of(depth));
  const int64_t whole = rows / kStrip, strips = (rows + kStrip - 1) / kStrip;
  for (int64_t u = 0; u < depth; u++, src += ld) {
    float* to = dst + u * kStrip;
    for (int64_t i = 0; i < rows; i += kLine) __builtin_prefetch(src + kRowsSoon * ld + i);
    for (int64_t s = 0; s < whole; s++) _mm_store_ps(to + s * strip, _mm_loadu_ps(src + s * kStrip));
    if (whole < strips)
      for (int64_t r = 0; r < kStrip; r++)
        to[whole * strip + r] = whole * kStrip + r < rows ? src[whole * kStrip + r] : 0.0f;
  }
  zero_steps(dst, strip, strips, kStrip, depth);
}

void pack_b(const float* src, int64_t ld, int64_t cols, int64_t depth, float* dst) {
  const int64_t panel = panel_floats(steps_of(depth));
  const int64_t whole = cols / kPanel, panels = (cols + kPanel - 1) / kPanel;
  for (int64_t u = 0; u < depth; u++, src += ld) {
    float* to = dst + u * kPanel;
    for (int64_t i = 0; i < cols; i += kLine) __builtin_prefetch(src + kRowsSoon * ld + i);
    for (int64_t p = 0; p < whole; p++)
#pragma GCC unroll 3
      for (int j = 0; j < kVectors; j++)
        _mm256_store_ps(to + p * panel + 8 * j, _mm256_loadu_ps(src + p * kPanel + 8 * j));
    if (whole < panels)
#pragma GCC unroll 3
      for (int j = 0; j < kVectors; j++)
        _mm256_store_ps(
            to + whole * panel + 8 * j,
            _mm256_maskload_ps(src + whole * kPanel + 8 * j, lanes_below(cols - whole * kPanel - 8 * j)));
  }
  zero_steps(dst, panel, panels, kPanel, depth);
}

}  // namespace

const Kernels* kernels() {
  static constexpr Kernels f{multiply, pack_a, pack_a_transposed, pack_b, pack_b_transposed};
  return &f;
}

}  // namespace trireme::cpu::packed

#else  // another processor's compiler: no such instructions
namespace trireme::cpu::packed {
const Kernels* kernels() {
  return nullptr;
}
}  // namespace trireme::cpu::packed
#endif
