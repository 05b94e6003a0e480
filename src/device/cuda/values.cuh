// Elements as f32: conversions, and loads and stores of chunks of eight elements, by 16 bytes where the
// address allows.
#pragma once
#include "device/cuda/gpu.cuh"

namespace trireme::cuda {

#if defined(__CUDACC__)
// To nearest even; NaN stays NaN. bf16: of sm_80 on.
__device__ __forceinline__ float widen(float x) {
  return x;
}
__device__ __forceinline__ float widen(bf16 x) {
  return __uint_as_float(uint32_t(x.bits) << 16);
}
__device__ __forceinline__ float widen(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
template <class T>
__device__ __forceinline__ T narrow(float x) {
  return x;
}
template <>
__device__ __forceinline__ bf16 narrow<bf16>(float x) {
  bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
template <>
__device__ __forceinline__ f16 narrow<f16>(float x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
#else
template <class T>
float widen(T x) {
  return float(x);
}
template <class T>
T narrow(float x) {
  return T(x);
}
#endif

// Sixteen bytes at once; p must be so aligned.
struct alignas(16) Bytes16 {
  uint32_t word[4];
};
#if defined(__CUDACC__)
__device__ __forceinline__ Bytes16 load16(const void* p) {
  return *static_cast<const Bytes16*>(p);
}
__device__ __forceinline__ void store16(void* p, const Bytes16& b) {
  *static_cast<Bytes16*>(p) = b;
}
#else
inline Bytes16 load16(const void* p) {
  emulate::require_aligned(p, 16);
  Bytes16 b;
  std::memcpy(&b, p, 16);
  return b;
}
inline void store16(void* p, const Bytes16& b) {
  emulate::require_aligned(p, 16);
  std::memcpy(p, &b, 16);
}
#endif

constexpr int kChunk = 8;  // elements that a thread takes at once: 16 bytes of bf16, 32 of f32

// What lies at p, n <= 8 elements (those beyond are 0). whole: p is 16-byte aligned.
template <class T>
__device__ __forceinline__ void load8(const T* p, bool whole, int n, T (&v)[kChunk]) {
  constexpr int at_once = 16 / int(sizeof(T));
  if (whole && n == kChunk) {
#pragma unroll
    for (int i = 0; i < kChunk; i += at_once) {
      union Both {
        Bytes16 bytes;
        T t[at_once];
      } u;
      u.bytes = load16(p + i);
#pragma unroll
      for (int k = 0; k < at_once; k++) v[i + k] = u.t[k];
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; i++)
    if (i < n)
      v[i] = p[i];
    else
      v[i] = T();
}
template <class T>
__device__ __forceinline__ void store8(const T (&v)[kChunk], T* p, bool whole, int n) {
  constexpr int at_once = 16 / int(sizeof(T));
  if (whole && n == kChunk) {
#pragma unroll
    for (int i = 0; i < kChunk; i += at_once) {
      union Both {
        Bytes16 bytes;
        T t[at_once];
      } u;
#pragma unroll
      for (int k = 0; k < at_once; k++) u.t[k] = v[i + k];
      store16(p + i, u.bytes);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; i++)
    if (i < n) p[i] = v[i];
}

// A matrix as kernels walk it: row i begins at data + i * stride. whole: each row is 16-byte aligned.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0;
  bool whole = false;

  __device__ __forceinline__ T* at(int64_t row) const { return data + row * stride; }
  // n <= 8 elements of a row from column c on, which is a multiple of 8; as f32.
  __device__ __forceinline__ void load(int64_t row, int64_t c, int n, float (&v)[kChunk]) const {
    std::remove_const_t<T> raw[kChunk];
    load8(at(row) + c, whole, n, raw);
#pragma unroll
    for (int i = 0; i < kChunk; i++) v[i] = widen(raw[i]);
  }
  __device__ __forceinline__ void store(const float (&v)[kChunk], int64_t row, int64_t c, int n) const {
    T raw[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; i++) raw[i] = narrow<T>(v[i]);
    store8(raw, at(row) + c, whole, n);
  }
};
inline bool aligned16(const void* p, int64_t stride_bytes) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride_bytes % 16 == 0;
}
// Rows of an [N, C] operand; of an absent one data is null. A vector is one row.
template <class T>
Rows<T> rows_of(const Tensor& t) {
  using Element = std::remove_const_t<T>;
  if (!t) return {};
  const int64_t stride = t.shape.rank >= 2 ? t.stride[size_t(t.shape.rank - 2)] : t.numel();
  Rows<T> r{t.as<Element>(), stride, false};
  r.whole = aligned16(r.data, t.shape.rank >= 2 && t.shape[0] > 1 ? stride * int64_t(sizeof(T)) : 0);
  return r;
}
// All elements of a contiguous operand as one row.
template <class T>
Rows<T> flat_of(const Tensor& t) {
  using Element = std::remove_const_t<T>;
  if (!t) return {};
  return {t.as<Element>(), 0, aligned16(t.data, 0)};
}

// Rows of [N, C], or of [N, heads, C] with heads one behind the other: row i is head i % heads.
template <class T>
struct HeadRows {
  T* data = nullptr;
  int64_t stride = 0, heads = 1, width = 0;
  bool whole = false;

  __device__ __forceinline__ Rows<T> row(int64_t i) const {
    return {heads == 1 ? data + i * stride : data + i / heads * stride + i % heads * width, 0, whole};
  }
};
template <class T>
HeadRows<T> head_rows_of(const Tensor& t) {
  using Element = std::remove_const_t<T>;
  if (!t) return {};
  HeadRows<T> r{t.as<Element>(), t.stride[0], 1, t.shape[t.shape.rank - 1], false};
  if (t.shape.rank == 3) r.heads = t.shape[1];
  const int64_t size = int64_t(sizeof(T));
  r.whole =
      aligned16(r.data, t.shape[0] > 1 ? r.stride * size : 0) && (r.heads == 1 || r.width * size % 16 == 0);
  return r;
}

// A kernel of independent chunks: f(row, column, n) for every chunk of n <= 8 elements of `rows` rows of
// `cols`.
constexpr int kChunkThreads = 256;
template <class F>
__global__ void chunks_kernel(int64_t rows, int64_t cols, F f) {
  const int64_t per_row = (cols + kChunk - 1) / kChunk;
  const int64_t i = int64_t(blockIdx.x) * kChunkThreads + threadIdx.x;
  if (i >= rows * per_row) return;
  int64_t row, chunk;
  if (rows * per_row <= int64_t(UINT32_MAX)) {
    row = uint32_t(i) / uint32_t(per_row), chunk = uint32_t(i) % uint32_t(per_row);
  } else {
    row = i / per_row, chunk = i % per_row;
  }
  const int64_t c = chunk * kChunk, left = cols - c;
  f(row, c, int(left < kChunk ? left : kChunk));
}
template <class F>
void each_chunk(int64_t rows, int64_t cols, cudaStream_t stream, const F& f) {
  const int64_t chunks = rows * ceil_div(cols, kChunk);
  run_blocks(chunks_kernel<F>, ceil_div(chunks, kChunkThreads), kChunkThreads, 0, stream, rows, cols, f);
}

}  // namespace trireme::cuda
