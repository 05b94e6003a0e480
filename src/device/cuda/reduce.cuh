// Sums and maxima of a warp and of a block, as fixed trees: the same bits every time. Every thread gets the
// result. Blocks are of whole warps.
#pragma once
#include "device/cuda/gpu.cuh"

namespace trireme::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;

struct Add {
  template <class V>
  __device__ __forceinline__ V operator()(V a, V b) const {
    return a + b;
  }
};
struct Largest {  // NaN if any is, as a maximum that hides none
  __device__ __forceinline__ float operator()(float a, float b) const { return a > b || a != a ? a : b; }
};

template <class Op, class V>
__device__ __forceinline__ V warp_reduce(V v, Op op) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const V other = __shfl_xor_sync(kAllLanes, v, step);
    // The lower lane's value first on both sides: equal bits in every lane whatever the operation.
    v = (threadIdx.x & unsigned(step)) ? op(other, v) : op(v, other);
  }
  return v;
}
template <class V>
__device__ __forceinline__ V warp_sum(V v) {
  return warp_reduce(v, Add());
}
__device__ __forceinline__ float warp_max(float v) {
  return warp_reduce(v, Largest());
}

// Two barriers: what was in shared memory before may be overwritten after, and the other way round.
template <class Op, class V>
__device__ __forceinline__ V block_reduce(V v, V nothing, Op op) {
  __shared__ V of_warp[32];
  v = warp_reduce(v, op);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
  __syncthreads();
  const unsigned lane = threadIdx.x % 32;
  v = warp_reduce(lane < blockDim.x / 32 ? of_warp[lane] : nothing, op);
  __syncthreads();
  return v;
}
template <class V>
__device__ __forceinline__ V block_sum(V v) {
  return block_reduce(v, V(0), Add());
}
__device__ __forceinline__ float block_max(float v) {
  return block_reduce(v, -HUGE_VALF, Largest());
}

// Threads of a block that takes a row of `cols` columns, eight to a thread and turn.
inline int row_threads(int64_t cols, int most = 512) {
  const int64_t warps = ceil_div(cols, 8 * 32);
  return int(warps < 1 ? 1 : warps > most / 32 ? most / 32 : warps) * 32;
}

}  // namespace trireme::cuda
