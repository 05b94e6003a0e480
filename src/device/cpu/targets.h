// Which instruction sets the Highway kernels are compiled for: include before hwy/foreach_target.h.
//
// Every target compiles every kernel once more. What stays covers what is met in practice: AVX2 and AVX-512
// on x86-64, whose baseline is AVX2 with FMA and F16C (CMakeLists.txt gives its options to files of Highway
// alone, and CpuDevice refuses processors without), NEON on ARM. Scalable vectors (SVE, RVV) are left out:
// the kernels keep accumulators in arrays of vectors, which must have a fixed size.
#pragma once

#if !defined(TRIREME_HWY_WITHOUT)
#define TRIREME_HWY_WITHOUT 0
#endif
#define HWY_DISABLED_TARGETS                                                                        \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_AVX3_DL | \
   TRIREME_HWY_WITHOUT)

namespace trireme::cpu {
#if defined(__x86_64__)
// AVX512-BF16: rounds a vector of f32 to bf16 in one instruction.
inline const bool kHasBf16Rounding = [] {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16") != 0;
}();
#endif
}  // namespace trireme::cpu
