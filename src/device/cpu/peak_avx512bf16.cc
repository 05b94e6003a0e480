// Compiled for AVX512-BF16 and called only where the processor has it.
#include <immintrin.h>

#include "device/cpu/peak.h"

namespace trireme::cpu {

// A dot product instruction: 16 lanes of two multiply-adds.
double bf16_flops_per_round() {
  return kBf16Chains * 16 * 2 * 2.0;
}

double bf16_burst(long rounds) {
  const __m512bh a = __m512bh(_mm512_set1_epi16(0x3f81)),
                 b = __m512bh(_mm512_set1_epi16(0x3c23));  // 1.008, 0.00995
  __m512 sum[kBf16Chains];
  for (int i = 0; i < kBf16Chains; i++) sum[i] = _mm512_set1_ps(float(i));
  for (long r = 0; r < rounds; r++)
#pragma GCC unroll 24
    for (int i = 0; i < kBf16Chains; i++) sum[i] = _mm512_dpbf16_ps(sum[i], a, b);
  double total = 0;
  for (int i = 0; i < kBf16Chains; i++) total += double(_mm512_cvtss_f32(sum[i]));
  return total;
}

}  // namespace trireme::cpu
