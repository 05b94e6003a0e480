// Attention's tile functions in bf16 with AVX512-BF16: a unit is two bf16 neighbours along the summed dim,
// which vdpbf16ps multiplies and adds into f32. This file alone is compiled for that extension; nothing of it
// runs unless the processor was asked (attention.cc).
//
// P and dS are rounded to bf16 to nearest even, row sums take P before it. 2^x has a relative error of 3e-6,
// two orders below that rounding.
#include "device/cpu/attention.h"

#ifdef __AVX512BF16__
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "device/cpu/avx512-inl.h"

namespace trireme::cpu::attention {
namespace {

constexpr float kLog2e = 1.44269504f;

TRIREME_INLINE __m512 f32(float x) {
  return _mm512_set1_ps(x);
}
TRIREME_INLINE const uint16_t* row(const Rows& r, int64_t i) {
  return reinterpret_cast<const uint16_t*>(r.data) + i * r.stride;
}
// 2^x by 2^floor(x) times a minimax polynomial of 2^(x - floor(x)); -inf gives 0, NaN stays.
TRIREME_INLINE __m512 exp2(__m512 x) {
  __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
  __m512 p = f32(0.013534168f);
  p = _mm512_fmadd_ps(p, f, f32(0.052011461f));
  p = _mm512_fmadd_ps(p, f, f32(0.24144276f));
  p = _mm512_fmadd_ps(p, f, f32(0.69300383f));
  p = _mm512_fmadd_ps(p, f, f32(1.0000026f));
  return _mm512_scalef_ps(p, x);
}
// bf16 of lo in lanes 0-15, of hi in lanes 16-31.
TRIREME_INLINE __m512i round2(__m512 lo, __m512 hi) {
  return (__m512i)_mm512_cvtne2ps_pbh(hi, lo);
}
// From lanes 0-15 and 16-31 to pairs (0, 16), (1, 17) ...
TRIREME_INLINE __m512i pairs(__m512i x) {
  const __m512i low = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i index =
      _mm512_or_si512(low, _mm512_slli_epi32(_mm512_add_epi32(low, _mm512_set1_epi32(16)), 16));
  return _mm512_permutexvar_epi16(index, x);
}

// Lane i of the result is the sum (the largest) of the lanes of r[i].
template <class Op>
TRIREME_INLINE __m512 reduce16(const __m512 r[16], Op op) {
  __m512 t[8], u[4];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++)
    t[i] = op(_mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]), _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]));
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {  // 128-bit lanes hold partial results of rows 4i..4i+3
    __m512d x = _mm512_castps_pd(t[2 * i]), y = _mm512_castps_pd(t[2 * i + 1]);
    u[i] = op(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  }
  __m512 v0 = op(_mm512_shuffle_f32x4(u[0], u[1], 0x88), _mm512_shuffle_f32x4(u[0], u[1], 0xdd));
  __m512 v1 = op(_mm512_shuffle_f32x4(u[2], u[3], 0x88), _mm512_shuffle_f32x4(u[2], u[3], 0xdd));
  return op(_mm512_shuffle_f32x4(v0, v1, 0x88), _mm512_shuffle_f32x4(v0, v1, 0xdd));
}
TRIREME_INLINE __m512 sum16(const __m512 r[16]) {
  return reduce16(r, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
}
TRIREME_INLINE __m512 max16(const __m512 r[16]) {
  return reduce16(r, [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); });
}

void pack_rows(const Rows& src, int64_t padded, int64_t depth, std::byte* dst) {
  auto* out = reinterpret_cast<uint16_t*>(dst);
  if (src.dim % 32 == 0) {  // no tails
    for (int64_t i = 0; i < src.rows; i++, out += depth)
      for (int64_t d = 0; d < depth; d += 32)
        _mm512_storeu_si512(out + d, _mm512_loadu_si512(row(src, i) + d));
  } else {
    for (int64_t i = 0; i < src.rows; i++, out += depth)
      for (int64_t d = 0; d < depth; d += 32)
        _mm512_mask_storeu_epi16(out + d, mask32(depth - d),
                                 _mm512_maskz_loadu_epi16(mask32(src.dim - d), row(src, i) + d));
  }
  std::memset(out, 0, size_t((padded - src.rows) * depth) * sizeof *out);
}

void pack_columns(const Rows& src, int64_t padded, int64_t depth, std::byte* dst) {
  auto* out = reinterpret_cast<uint32_t*>(dst);
  int64_t units = depth / 2;
  for (int64_t first = 0; first < padded; first += kPanel, out += kPanel * units) {
    int64_t width = std::min(kPanel, padded - first);
    for (int64_t i = 0; i < width; i += 16)
      for (int64_t u = 0; u < units; u += 16) {
        __m512i r[16];
#pragma GCC unroll 16
        for (int l = 0; l < 16; l++) {
          int64_t at = first + i + l;
          r[l] = at < src.rows ? _mm512_maskz_loadu_epi16(mask32(src.dim - 2 * u), row(src, at) + 2 * u)
                               : _mm512_setzero_si512();
        }
        transpose(r);
        uint32_t* to = out + u * width + i;
        int64_t n = std::min<int64_t>(16, units - u);  // 8 or 16
#pragma GCC unroll 8
        for (int l = 0; l < 8; l++) _mm512_storeu_si512(to + l * width, r[l]);
        if (n > 8)
#pragma GCC unroll 8
          for (int l = 8; l < 16; l++) _mm512_storeu_si512(to + l * width, r[l]);
      }
  }
}

// Rows 2u and 2u + 1, interleaved: 32 columns at a time by two-source permutations, tails 16 at a time by
// shifts.
void pack_summed(const Rows& src, int64_t padded, int64_t depth, std::byte* dst) {
  auto* out = reinterpret_cast<uint32_t*>(dst);
  const __m512i even = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i low = _mm512_or_si512(
      even, _mm512_slli_epi32(_mm512_add_epi32(even, _mm512_set1_epi32(32)), 16));  // 0 32 1 33 ...
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  int64_t units = padded / 2, whole = src.rows / 2;
  for (int64_t first = 0; first < depth; first += kPanel, out += kPanel * units) {
    int64_t width = std::min(kPanel, depth - first), j = 0;
    for (; j + 32 <= std::min(width, src.dim - first); j += 32)
      for (int64_t u = 0; u < whole; u++) {
        const uint16_t* at = row(src, 2 * u) + first + j;
        __m512i x = _mm512_loadu_si512(at), y = _mm512_loadu_si512(at + src.stride);
        _mm512_storeu_si512(out + u * width + j, _mm512_permutex2var_epi16(x, low, y));
        _mm512_storeu_si512(out + u * width + j + 16, _mm512_permutex2var_epi16(x, high, y));
      }
    for (int64_t u = 0; u < units; u++)
      for (int64_t l = u < whole ? j : 0; l < width; l += 16) {
        __mmask16 seen = mask16(src.dim - first - l);
        __mmask16 m0 = 2 * u < src.rows ? seen : 0, m1 = 2 * u + 1 < src.rows ? seen : 0;
        const uint16_t* at = row(src, m0 ? 2 * u : 0) + first + l;
        __m512i lo = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m0, at));
        __m512i hi = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m1, at + (m1 ? src.stride : 0)));
        _mm512_storeu_si512(out + u * width + l, _mm512_or_si512(lo, _mm512_slli_epi32(hi, 16)));
      }
  }
}

// MR rows by 16 NV columns in registers: 16 accumulators keep both dot units busy over their latency.
template <int MR, int NV>
TRIREME_INLINE void micro(const Product<float>& p, const uint32_t* a, const uint32_t* b, int64_t ldb,
                          float* c, const float* keep) {
  __m512 sum[MR][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) sum[i][j] = _mm512_setzero_ps();
  if (p.add) {
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
      for (int j = 0; j < NV; j++) {
        __m512 old = _mm512_loadu_ps(c + i * p.ldc + 16 * j);
        sum[i][j] = keep ? _mm512_mul_ps(old, f32(keep[i])) : old;
      }
  }
  int64_t a_row = p.a_row, a_step = p.a_step;
  for (int64_t k = 0; k < p.k; k++, a += a_step, b += ldb) {
    __m512i right[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) right[j] = _mm512_loadu_si512(b + 16 * j);
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++) {
      __m512bh left = (__m512bh)_mm512_set1_epi32(int(a[i * a_row]));
#pragma GCC unroll 4
      for (int j = 0; j < NV; j++) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], left, (__m512bh)right[j]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) _mm512_storeu_ps(c + i * p.ldc + 16 * j, sum[i][j]);
}

template <int MR, int NV>
__attribute__((noinline)) void panel(const Product<float>& p, const uint32_t* b, int64_t ldb, float* c) {
  auto* a = reinterpret_cast<const uint32_t*>(p.a);
  for (int64_t i = 0; i < p.m; i += MR)
    micro<MR, NV>(p, a + i * p.a_row, b, ldb, c + i * p.ldc, p.keep ? p.keep + i : nullptr);
}

void product(const Product<float>& p) {
  for (int64_t j = 0; j < p.n; j += kPanel) {
    int64_t width = std::min(kPanel, p.b_cols - j);
    auto* b = reinterpret_cast<const uint32_t*>(p.b) + j * p.b_depth + p.b_first * width;
    switch (std::min(kPanel, p.n - j) / 16) {
      case 1:
        panel<16, 1>(p, b, width, p.c + j);
        break;
      case 2:
        panel<8, 2>(p, b, width, p.c + j);
        break;
      case 3:
        panel<4, 3>(p, b, width, p.c + j);
        break;
      default:
        panel<4, 4>(p, b, width, p.c + j);
    }
  }
}

void softmax(const SoftmaxTile<float>& t) {
  // max(scale s) = |scale| max(sign(scale) s)
  const __m512 sign = _mm512_castsi512_ps(_mm512_set1_epi32(t.scale < 0 ? int(0x80000000u) : 0));
  __m512 most[kStrip], sums[kStrip];
  for (int64_t r = 0; r < kStrip; r++) {
    const float* s = t.s + r * t.ld;
    int64_t seen = std::min(t.mask.row(r), t.n), j = 0;
    __m512 m0 = f32(-INFINITY), m1 = m0;
    for (; j + 32 <= seen; j += 32) {
      m0 = _mm512_max_ps(m0, _mm512_xor_ps(_mm512_loadu_ps(s + j), sign));
      m1 = _mm512_max_ps(m1, _mm512_xor_ps(_mm512_loadu_ps(s + j + 16), sign));
    }
    for (; j < seen; j += 16)
      m0 = _mm512_mask_max_ps(m0, mask16(seen - j), m0, _mm512_xor_ps(_mm512_loadu_ps(s + j), sign));
    most[r] = _mm512_max_ps(m0, m1);
  }
  __m512 old = _mm512_loadu_ps(t.m);
  __m512 m = _mm512_max_ps(old, _mm512_mul_ps(max16(most), f32(std::fabs(t.scale))));
  __m512 keep = exp2(_mm512_mul_ps(_mm512_sub_ps(old, m), f32(kLog2e)));
  alignas(64) float shifts[kStrip];
  _mm512_storeu_ps(t.m, m);
  _mm512_storeu_ps(t.keep, keep);
  _mm512_store_ps(shifts, _mm512_mul_ps(m, f32(kLog2e)));

  const __m512 scale = f32(t.scale * kLog2e);
  for (int64_t r = 0; r < kStrip; r++) {
    const float* s = t.s + r * t.ld;
    auto* p = reinterpret_cast<uint16_t*>(t.p) + r * t.ld;
    int64_t seen = std::min(t.mask.row(r), t.n), j = 0;
    __m512 shift = f32(shifts[r]), sum0 = _mm512_setzero_ps(), sum1 = sum0;
    for (; j + 32 <= seen; j += 32) {
      __m512 e0 = exp2(_mm512_fmsub_ps(_mm512_loadu_ps(s + j), scale, shift));
      __m512 e1 = exp2(_mm512_fmsub_ps(_mm512_loadu_ps(s + j + 16), scale, shift));
      sum0 = _mm512_add_ps(sum0, e0), sum1 = _mm512_add_ps(sum1, e1);
      _mm512_storeu_si512(p + j, round2(e0, e1));
    }
    for (; j < t.n; j += 16) {
      __m512 e = exp2(_mm512_fmsub_ps(_mm512_loadu_ps(s + j), scale, shift));
      e = _mm512_maskz_mov_ps(mask16(seen - j), e);
      sum0 = _mm512_add_ps(sum0, e);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + j), (__m256i)_mm512_cvtneps_pbh(e));
    }
    sums[r] = _mm512_add_ps(sum0, sum1);
  }
  _mm512_storeu_ps(t.l, _mm512_fmadd_ps(keep, _mm512_loadu_ps(t.l), sum16(sums)));
}

void gradient(const GradientTile<float>& t) {
  __m512 scale2 = f32(t.scale * kLog2e);
  for (int64_t r = 0; r < kStrip; r += 2) {
    const float *s0 = t.s + r * t.ld, *s1 = s0 + t.ld, *d0 = t.dp + r * t.ld, *d1 = d0 + t.ld;
    auto* rows = reinterpret_cast<uint16_t*>(t.ds_rows) + r * t.ld;
    uint32_t* p_out = reinterpret_cast<uint32_t*>(t.p_pairs) + r / 2 * t.ld;
    uint32_t* ds_out = reinterpret_cast<uint32_t*>(t.ds_pairs) + r / 2 * t.ld;
    __m512 lse0 = f32(t.lse[r] * kLog2e), lse1 = f32(t.lse[r + 1] * kLog2e);
    __m512 delta0 = f32(t.delta[r]), delta1 = f32(t.delta[r + 1]);
    int64_t seen0 = t.mask.row(r), seen1 = t.mask.row(r + 1);
    for (int64_t j = 0; j < t.n; j += 16) {
      __mmask16 m0 = mask16(seen0 - j), m1 = mask16(seen1 - j);
      __m512 p0 = exp2(_mm512_fmsub_ps(_mm512_loadu_ps(s0 + j), scale2, lse0));
      __m512 p1 = exp2(_mm512_fmsub_ps(_mm512_loadu_ps(s1 + j), scale2, lse1));
      p0 = _mm512_maskz_mov_ps(m0, p0), p1 = _mm512_maskz_mov_ps(m1, p1);
      __m512 ds0 = _mm512_maskz_mul_ps(m0, p0, _mm512_sub_ps(_mm512_loadu_ps(d0 + j), delta0));
      __m512 ds1 = _mm512_maskz_mul_ps(m1, p1, _mm512_sub_ps(_mm512_loadu_ps(d1 + j), delta1));
      __m512i ds = round2(ds0, ds1);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(rows + j), _mm512_castsi512_si256(ds));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(rows + t.ld + j), _mm512_extracti64x4_epi64(ds, 1));
      _mm512_storeu_si512(p_out + j, pairs(round2(p0, p1)));
      _mm512_storeu_si512(ds_out + j, pairs(ds));
    }
  }
}

void store(const float* c, int64_t ldc, float factor, const float* factors, const Rows& dst) {
  for (int64_t r = 0; r < dst.rows; r++, c += ldc) {
    __m512 f = f32(factors ? factor * factors[r] : factor);
    auto* out = const_cast<uint16_t*>(row(dst, r));
    int64_t d = 0;
    for (; d + 32 <= dst.dim; d += 32)
      _mm512_storeu_si512(out + d, round2(_mm512_mul_ps(_mm512_loadu_ps(c + d), f),
                                          _mm512_mul_ps(_mm512_loadu_ps(c + d + 16), f)));
    for (; d < dst.dim; d += 16)
      _mm256_mask_storeu_epi16(out + d, mask16(dst.dim - d),
                               (__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(_mm512_loadu_ps(c + d), f)));
  }
}

void row_dots(const Rows& a, const Rows& b, float* out) {
  for (int64_t first = 0; first < a.rows; first += 16) {
    __m512 sums[16];
    for (int64_t r = 0; r < 16; r++) {
      int64_t i = std::min(first + r, a.rows - 1);
      const uint16_t *x = row(a, i), *y = row(b, i);
      sums[r] = _mm512_setzero_ps();
      for (int64_t d = 0; d < a.dim; d += 32) {
        __mmask32 m = mask32(a.dim - d);
        sums[r] = _mm512_dpbf16_ps(sums[r], (__m512bh)_mm512_maskz_loadu_epi16(m, x + d),
                                   (__m512bh)_mm512_maskz_loadu_epi16(m, y + d));
      }
    }
    _mm512_mask_storeu_ps(out + first, mask16(a.rows - first), sum16(sums));
  }
}

}  // namespace

const Tiles<float>* tiles_bf16() {
  static const Tiles<float> tiles{2,       4,       2,        pack_rows, pack_columns, pack_summed,
                                  product, softmax, gradient, store,     row_dots,     nullptr};
  return &tiles;
}

}  // namespace trireme::cpu::attention

#else  // another processor's compiler: no such instructions
namespace trireme::cpu::attention {
const Tiles<float>* tiles_bf16() {
  return nullptr;
}
}  // namespace trireme::cpu::attention
#endif
