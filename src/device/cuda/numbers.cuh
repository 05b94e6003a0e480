// Numbers in the type of the sums: f32, or f64 for f64.
#pragma once
#include "device/cuda/values.cuh"

namespace trireme::cuda {

template <class Acc, class T>
__device__ __forceinline__ Acc widen_to(T x) {
  if constexpr (sizeof(T) == 8)
    return Acc(x);
  else
    return Acc(widen(x));
}
template <class T, class Acc>
__device__ __forceinline__ T narrow_to(Acc x) {
  if constexpr (sizeof(T) == 8)
    return T(x);
  else
    return narrow<T>(float(x));
}

__device__ __forceinline__ float exp_of(float x) {
  return expf(x);
}
__device__ __forceinline__ double exp_of(double x) {
  return exp(x);
}
__device__ __forceinline__ float log_of(float x) {
  return logf(x);
}
__device__ __forceinline__ double log_of(double x) {
  return log(x);
}
__device__ __forceinline__ float fma_of(float a, float b, float c) {
  return fmaf(a, b, c);
}
__device__ __forceinline__ double fma_of(double a, double b, double c) {
  return fma(a, b, c);
}
// 2^x, as the unit for it has it: 2 ulp; what is under 2^-126 is 0. exp2f keeps that, by four more
// instructions and a branch.
__device__ __forceinline__ float exp2_of(float x) {
#if defined(__CUDACC__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}
template <class Acc>
__device__ __forceinline__ Acc infinity() {
  return Acc(HUGE_VALF);
}

}  // namespace trireme::cuda
