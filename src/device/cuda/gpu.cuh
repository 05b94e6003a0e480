// What kernels are written against: CUDA under nvcc; under another compiler the emulation of tests/emulate,
// which runs the same source on a processor, blocks one after another and threads as fibers.
//
// Rules that let one source be both, and give the same bits on both:
//  - nvcc contracts nothing (-fmad=false): what shall be fused is written fmaf;
//  - every lane of a warp takes part in a shuffle, every thread of a block in a barrier;
//  - static shared memory by __shared__, dynamic by dynamic_shared<T>(); no other extern memory;
//  - no thread leaves a block while others wait for it at a barrier;
//  - files that only a device can run (libraries, its own instructions) are named *_device.cu.
#pragma once
#if defined(__CUDACC__)
#include <cuda_runtime.h>
#else
#include <emulate.h>
#endif
#include <climits>
#include <cmath>

#include "device/cuda/launches.h"
#include "device/cuda/spins.h"

namespace trireme::cuda {

struct Grid {
  int64_t x = 1, y = 1, z = 1;
  Grid(int64_t x, int64_t y = 1, int64_t z = 1) : x(x), y(y), z(z) {}
};
inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

#if defined(__CUDACC__)

inline void check_call(cudaError_t e, const char* call) {
  if (e == cudaSuccess) [[likely]]
    return;
  if (const std::string wait = spin_report_text(); !wait.empty()) run_failed("CUDA: a kernel hung: {}", wait);
  run_failed("CUDA: {} failed: {} ({})", call, cudaGetErrorString(e), cudaGetErrorName(e));
}
#define TRIREME_CUDA_CALL(call) ::trireme::cuda::check_call(call, #call)

// Puts a kernel on a stream: `shared` bytes of dynamic shared memory, at most 48 KiB unless allow_shared was
// called. A grid without blocks is no launch.
template <class... P, class... A>
void run_blocks(void (*kernel)(P...), Grid grid, int threads, int64_t shared, cudaStream_t stream,
                const A&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  require(grid.x <= INT_MAX && grid.y <= 65535 && grid.z <= 65535, "a grid larger than CUDA's");
  kernel<<<dim3(unsigned(grid.x), unsigned(grid.y), unsigned(grid.z)), dim3(unsigned(threads)),
           size_t(shared), stream>>>(P(args)...);
  check_call(cudaGetLastError(), "a kernel's launch");
}
template <class... P>
void allow_shared(void (*kernel)(P...), int64_t bytes) {
  TRIREME_CUDA_CALL(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)));
}
inline void set_bytes(void* p, int value, int64_t bytes, cudaStream_t stream) {
  if (bytes > 0) TRIREME_CUDA_CALL(cudaMemsetAsync(p, value, size_t(bytes), stream));
}
inline void copy_bytes(void* dst, const void* src, int64_t bytes, cudaStream_t stream) {
  if (bytes > 0) TRIREME_CUDA_CALL(cudaMemcpyAsync(dst, src, size_t(bytes), cudaMemcpyDefault, stream));
}
inline void finish(cudaStream_t stream) {
  TRIREME_CUDA_CALL(cudaStreamSynchronize(stream));
}

template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];
  return reinterpret_cast<T*>(dynamic_shared_bytes);
}

#else

template <class... P, class... A>
void run_blocks(void (*kernel)(P...), Grid grid, int threads, int64_t shared, cudaStream_t,
                const A&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  require(grid.x <= INT_MAX && grid.y <= 65535 && grid.z <= 65535, "a grid larger than CUDA's");
  try {
    emulate::run({unsigned(grid.x), unsigned(grid.y), unsigned(grid.z)}, unsigned(threads), shared,
                 [&] { kernel(P(args)...); });
  } catch (const emulate::Trapped&) {
    run_failed("CUDA: a kernel hung: {}", spin_report_text());
  }
}
template <class... P>
void allow_shared(void (*)(P...), int64_t bytes) {
  emulate::allow_shared(bytes);
}
inline void set_bytes(void* p, int value, int64_t bytes, cudaStream_t) {
  emulate::set_bytes(p, value, bytes);
}
inline void copy_bytes(void* dst, const void* src, int64_t bytes, cudaStream_t) {
  emulate::copy_bytes(dst, src, bytes);
}
inline void finish(cudaStream_t) {}

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(emulate::dynamic_shared());
}

#endif

// Calls f(T()) with the compute type.
template <class F>
void by_type(DType t, F&& f) {
  switch (t) {
    case DType::f32:
      return f(float());
    case DType::bf16:
      return f(bf16());
    case DType::f16:
      return f(f16());
    default:
      require(false, "an operand of a type that no CUDA kernel takes");
  }
}

}  // namespace trireme::cuda
