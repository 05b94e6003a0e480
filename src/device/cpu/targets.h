// Which instruction sets the Highway kernels are compiled for: include before hwy/foreach_target.h.
//
// Every target compiles every kernel once more. What stays covers what is met in practice: the portable
// baseline (x86-64 without AVX2; NEON on ARM), AVX2, and AVX-512. Scalable vectors (SVE, RVV) are left out:
// the kernels keep accumulators in arrays of vectors, which must have a fixed size. Under the sanitizers,
// whose code takes compilers minutes, the narrowest and the widest stand for AVX2 between them.
#pragma once

#if defined(TRIREME_SANITIZED)
#define TRIREME_HWY_BETWEEN HWY_AVX2
#else
#define TRIREME_HWY_BETWEEN 0
#endif
#define HWY_DISABLED_TARGETS                                                                        \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_AVX3_DL | \
   TRIREME_HWY_BETWEEN)

namespace trireme::cpu {
#if defined(__x86_64__)
// AVX512-BF16: rounds a vector of f32 to bf16 in one instruction.
inline const bool kHasBf16Rounding = [] {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16") != 0;
}();
#endif
}  // namespace trireme::cpu
