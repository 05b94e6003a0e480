// What the files of matrix products share that are compiled for AVX512-BF16; included by them alone.
#pragma once
#include "device/cpu/avx512-inl.h"
#include "device/cpu/gemm_asking-inl.h"

namespace trireme::cpu::gemm {
namespace {  // compiled for other processors too: not for the linker to choose among

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
