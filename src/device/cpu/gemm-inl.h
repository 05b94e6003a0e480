// What the files of matrix products share that are compiled for AVX512-BF16; included by them alone.
#pragma once
#include "device/cpu/avx512-inl.h"
#include "device/cpu/gemm.h"

namespace trireme::cpu::gemm {
namespace {  // compiled for other processors too: not for the linker to choose among

// Steps through lines that are wanted soon.
class Asking {
 public:
  Asking(const Lines* soon, int64_t wanted) : at_(soon), end_(soon + wanted) { enter(); }
  TRIREME_INLINE bool more() const { return at_ != end_; }
  TRIREME_INLINE void ask() {
    __builtin_prefetch(line_, 0, 3);
    line_ += 64;
    if (--lines_ > 0) return;
    lines_ = at_->lines;
    line_ = row_ += at_->row;
    if (--rows_ == 0) at_++, enter();
  }
  static int64_t count(const Lines* soon, int64_t wanted) {
    int64_t n = 0;
    for (int64_t i = 0; i < wanted; i++) n += soon[i].rows * soon[i].lines;
    return n;
  }

 private:
  TRIREME_INLINE void enter() {
    if (more()) line_ = row_ = at_->data, lines_ = at_->lines, rows_ = at_->rows;
  }
  const Lines *at_, *end_;
  const std::byte *line_ = nullptr, *row_ = nullptr;
  int64_t lines_ = 0, rows_ = 0;
};

// Two rows of bf16, 32 columns, as 32 units.
struct Pair {
  __m512i low, high;
};
TRIREME_INLINE Pair interleave(__m512i even, __m512i odd) {
  // unpack works in 128-bit pieces: 0-3 and 8-11 of both | 4-7 and 12-15, put in order by one more shuffle
  // each.
  const __m512i low = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0),
                high = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
  __m512i x = _mm512_unpacklo_epi16(even, odd), y = _mm512_unpackhi_epi16(even, odd);
  return {_mm512_permutex2var_epi64(x, low, y), _mm512_permutex2var_epi64(x, high, y)};
}

TRIREME_INLINE __m512 load(const float* p, __mmask16 m) {
  return _mm512_maskz_loadu_ps(m, p);
}
TRIREME_INLINE __m512 load(const bf16* p, __mmask16 m) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, p)), 16));
}
TRIREME_INLINE __m512 load(const float* p) {
  return _mm512_loadu_ps(p);
}
TRIREME_INLINE __m512 load(const bf16* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

}  // namespace
}  // namespace trireme::cpu::gemm
