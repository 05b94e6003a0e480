// Tiles of our own f32 product for processors with AVX2 and FMA and no more: 6 x 16 sums in 12 of 16
// registers. Each step loads two vectors of b and broadcasts six units of a for 12 multiply-adds. A packed
// panel is four of 16 columns, one behind the other, so that a step reads the line behind the last one's.
// This file alone is compiled for these extensions; nothing of it runs unless the processor was asked.
#include "device/cpu/gemm.h"

#ifdef __AVX2__
#include <immintrin.h>

#include <cstring>

#include "device/cpu/gemm_asking-inl.h"

namespace trireme::cpu::gemm {
namespace {

constexpr int64_t kColumns = 16;             // of sums held in registers
constexpr int64_t kPackedStep = 4 * kStrip;  // bytes from a unit of packed a to the next; elsewhere 4
constexpr int kVectors = 2, kQuarters = int(kPanel / kColumns);

TRIREME_INLINE const float* floats(const std::byte* p) {
  return reinterpret_cast<const float*>(p);
}
TRIREME_INLINE float* floats(std::byte* p) {
  return reinterpret_cast<float*>(p);
}
TRIREME_INLINE __m256i lanes_below(int64_t n) {  // n from below 0 to beyond 8
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(std::clamp<int64_t>(n, 0, 8))),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// sum += left * right. Spelled out: left to themselves, compilers move sums between registers, and a core
// that shares its decoders with another thread is bound by them (measured there: 8 % less time).
TRIREME_INLINE void multiply_add(__m256& sum, __m256 left, __m256 right) {
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(left), "x"(right));
}

// Sums of MR rows and the 16 columns that `b` holds, going on in `sum`; kStep bytes from a unit of a to the
// next. Meanwhile asks for lines, one every `few` steps.
template <int MR, int64_t kStep>
TRIREME_INLINE void sums_of(const Tile& t, const float* b, Asking& soon, int64_t few, __m256 (&sum)[MR][2]) {
  const std::byte* row[MR];
#pragma GCC unroll 6
  for (int i = 0; i < MR; i++) row[i] = t.a + i * t.a_row;
  const int64_t end = t.units * kStep;
  int64_t at = 0;
  auto step = [&](int64_t ahead) __attribute__((always_inline)) {
    const float* right = b + ahead * kColumns;
    const __m256 right0 = _mm256_load_ps(right), right1 = _mm256_load_ps(right + 8);
#pragma GCC unroll 6
    for (int i = 0; i < MR; i++) {
      const __m256 left = _mm256_broadcast_ss(floats(row[i] + at + ahead * kStep));
      multiply_add(sum[i][0], left, right0);
      multiply_add(sum[i][1], left, right1);
    }
  };
  auto steps_to = [&](int64_t stop) __attribute__((always_inline)) {
    for (; at + 4 * kStep <= stop; at += 4 * kStep, b += 4 * kColumns) {
#pragma GCC unroll 6
      for (int i = 0; i < MR; i++) asm("" : "+r"(row[i]));  // not one register more for each of four steps
      step(0), step(1), step(2), step(3);
    }
    for (; at < stop; at += kStep, b += kColumns) step(0);
  };
  for (; soon.more() && at + few * kStep <= end; steps_to(at + few * kStep)) soon.ask();
  steps_to(end);
}

// The tile's sums, 16 columns at a time; use(column, sum) takes them.
template <int MR, class Use>
TRIREME_INLINE void quarters(const Tile& t, const Use& use) {
  // Lines spread over the first three quarters; of fewer than four the last may not be asked for.
  const int64_t lines = Asking::count(t.soon, t.wanted);
  const int64_t few = lines ? std::max<int64_t>(1, t.units * 3 / lines) : t.units;
  Asking soon(t.soon, t.wanted);
  for (int quarter = 0; quarter < kQuarters; quarter++) {
    __m256 sum[MR][2];
    const int64_t column = quarter * kColumns;
#pragma GCC unroll 6
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; j++)
        sum[i][j] = t.from ? _mm256_loadu_ps(t.from + i * t.ld_from + column + 8 * j) : _mm256_setzero_ps();
    const float* b = floats(t.b) + quarter * t.units * kColumns;
    if (t.a_step == kPackedStep)
      sums_of<MR, kPackedStep>(t, b, soon, few, sum);
    else
      sums_of<MR, 4>(t, b, soon, few, sum);
    use(column, sum);
  }
}

template <int MR>
__attribute__((noinline)) void multiply(const Tile& t) {
  quarters<MR>(
      t, [&](int64_t column, const __m256(&sum)[MR][2]) __attribute__((always_inline)) {
#pragma GCC unroll 6
        for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
          for (int j = 0; j < kVectors; j++)
            _mm256_storeu_ps(t.sums + i * t.ld_sums + column + 8 * j, sum[i][j]);
      });
}

template <int MR>
__attribute__((noinline)) void multiply_to(const Tile& t, const Finish& f) {
  quarters<MR>(
      t, [&](int64_t column, const __m256(&sum)[MR][2]) __attribute__((always_inline)) {
#pragma GCC unroll 2
        for (int j = 0; j < kVectors; j++) {
          const int64_t at = column + 8 * j;
          const __m256 bias = f.bias ? _mm256_loadu_ps(floats(f.bias) + at) : _mm256_setzero_ps();
#pragma GCC unroll 6
          for (int i = 0; i < MR; i++) {
            __m256 v = _mm256_add_ps(sum[i][j], bias);
            float* c = floats(f.c + i * f.c_row) + at;
            if (f.residual)
              v = _mm256_add_ps(v, _mm256_loadu_ps(floats(f.residual + i * f.residual_row) + at));
            if (f.accumulate) v = _mm256_add_ps(v, _mm256_loadu_ps(c));
            _mm256_storeu_ps(c, v);
          }
        }
      });
}

// Of tiles at the right edge.
void finish(const Finish& f) {
  for (int64_t j = 0; j < f.cols; j += 8) {
    const __m256i seen = lanes_below(f.cols - j);
    const __m256 bias = f.bias ? _mm256_maskload_ps(floats(f.bias) + j, seen) : _mm256_setzero_ps();
    for (int64_t r = 0; r < f.rows; r++) {
      float* c = floats(f.c + r * f.c_row) + j;
      __m256 v = _mm256_add_ps(_mm256_loadu_ps(f.sums + r * f.ld_sums + j), bias);
      if (f.residual)
        v = _mm256_add_ps(v, _mm256_maskload_ps(floats(f.residual + r * f.residual_row) + j, seen));
      if (f.accumulate) v = _mm256_add_ps(v, _mm256_maskload_ps(c, seen));
      _mm256_maskstore_ps(c, seen, v);
    }
  }
}

// ---- packing ----

// r[i] holds row i of 8 x 8, afterwards column i.
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

// From rows of b^T: 8 columns and 8 steps at a time, along the 8 rows.
void pack_transposed(const std::byte* src, int64_t row, int64_t cols, int64_t depth, std::byte* dst) {
  constexpr int64_t kSoon = 512;  // bytes of a row
  for (int64_t j = 0; j < kPanel; j += 8) {
    float* to = floats(dst) + j / kColumns * depth * kColumns + j % kColumns;
    for (int64_t u = 0; u < depth; u += 8) {
      const std::byte* from = src + j * row + 4 * u;
      const int64_t n = std::min<int64_t>(8, depth - u);
      __m256 r[8];
      if (j + 8 <= cols && n == 8) {
#pragma GCC unroll 8
        for (int l = 0; l < 8; l++) {
          if (u % 16 == 0) _mm_prefetch(reinterpret_cast<const char*>(from + l * row) + kSoon, _MM_HINT_T0);
          r[l] = _mm256_loadu_ps(floats(from + l * row));
        }
      } else {
        const __m256i seen = lanes_below(n);
#pragma GCC unroll 8
        for (int l = 0; l < 8; l++)
          r[l] = j + l < cols ? _mm256_maskload_ps(floats(from + l * row), seen) : _mm256_setzero_ps();
      }
      transpose(r);
      if (n == 8) {
#pragma GCC unroll 8
        for (int l = 0; l < 8; l++) _mm256_store_ps(to + (u + l) * kColumns, r[l]);
      } else {
        for (int64_t l = 0; l < n; l++) _mm256_store_ps(to + (u + l) * kColumns, r[l]);
      }
    }
  }
}

void pack_rows(const std::byte* src, int64_t row, int64_t cols, int64_t depth, std::byte* dst) {
  __m256i seen[8];
#pragma GCC unroll 8
  for (int j = 0; j < 8; j++) seen[j] = lanes_below(cols - 8 * j);
  for (int64_t k = 0; k < depth; k++, src += row) {
    float* to = floats(dst) + k * kColumns;
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
      _mm256_store_ps(to + j / kVectors * depth * kColumns + j % kVectors * 8,
                      cols == kPanel ? _mm256_loadu_ps(floats(src) + 8 * j)
                                     : _mm256_maskload_ps(floats(src) + 8 * j, seen[j]));
  }
}

void pack_strips(const std::byte* src, int64_t row, int64_t rows, int64_t depth, std::byte* dst) {
  constexpr int64_t kAcross = 8 * kStrip;  // three lines of a row
  const int64_t strip = strip_bytes(depth);
  for (int64_t i = 0; i < rows; i += kAcross, dst += 8 * strip) {
    const int64_t n = std::min(kAcross, rows - i);
    const std::byte* from = src + 4 * i;
    for (int64_t u = 0; u < depth; u++, from += row) {
      __builtin_prefetch(from + 24 * row), __builtin_prefetch(from + 24 * row + 64);
      std::byte* to = dst + u * kStrip * 4;
      if (n == kAcross) {
#pragma GCC unroll 8
        for (int s = 0; s < 8; s++) {
          const float* x = floats(from) + s * kStrip;
          const __m128 low = _mm_loadu_ps(x);
          const __m128i high = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(x + 4));
          _mm_storeu_ps(floats(to + s * strip), low);
          _mm_storel_epi64(reinterpret_cast<__m128i*>(to + s * strip + 16), high);
        }
        continue;
      }
      for (int64_t s = 0; s * kStrip < n; s++) {
        float* x = floats(to + s * strip);
        for (int64_t r = 0; r < kStrip; r++) x[r] = s * kStrip + r < n ? floats(from)[s * kStrip + r] : 0.0f;
      }
    }
  }
}

}  // namespace

const Kernels* avx2_kernels() {
  static constexpr Kernels f{
      sizeof(float),
      1,
      3072,  // a panel of 192 KB, of an L2 of 256 KB or more
      2048,
      384,
      {multiply<1>, multiply<2>, multiply<3>, multiply<4>, multiply<5>, multiply<6>},
      {multiply_to<1>, multiply_to<2>, multiply_to<3>, multiply_to<4>, multiply_to<5>, multiply_to<6>},
      {multiply_to<1>, multiply_to<2>, multiply_to<3>, multiply_to<4>, multiply_to<5>, multiply_to<6>},
      pack_strips,
      pack_transposed,
      pack_rows,
      finish,
      finish};
  return &f;
}

}  // namespace trireme::cpu::gemm

#else  // another processor's compiler: no such instructions
namespace trireme::cpu::gemm {
const Kernels* avx2_kernels() {
  return nullptr;
}
}  // namespace trireme::cpu::gemm
#endif
