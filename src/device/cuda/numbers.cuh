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
template <class Acc>
__device__ __forceinline__ Acc infinity() {
  return Acc(HUGE_VALF);
}

}  // namespace trireme::cuda
