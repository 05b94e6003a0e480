// Matrix products without tensor cores or alignment: what cuBLASLt and the tensor-core kernels do not take.
//
// A block of 256 threads owns 64 x 64 sums, a thread 4 x 4 of them; the summed dim goes by in slices of 16
// through shared memory, widened to f32. Each sum is one chain of fused multiply-adds in ascending k: the
// same bits every time, whatever the sizes around it. Per block and slice 2 x 64 x 16 elements are read for
// 2 x 64 x 64 x 16 FLOPs.
#pragma once
#include "device/cuda/numbers.cuh"

namespace trireme::cuda {

inline constexpr int kSimtTile = 64, kSimtDepth = 16, kSimtThreads = 256;

// Element (i, k) of a left, (k, j) of a right operand: two strides, one of which is 1 as a rule.
template <class T>
struct Factor {
  const T* data = nullptr;
  int64_t outer = 0, summed = 0;  // strides of the dim that stays, of the summed one

  __device__ __forceinline__ float at(int64_t i, int64_t k) const {
    return widen(data[i * outer + k * summed]);
  }
};

// Elements [first, first + 64) of the dim that stays (0 from `limit` on), [k0, k0 + 16) of the summed one (0
// from `depth` on), into tile[k][i]. F: Factor, or what has the same members.
template <class F>
__device__ __forceinline__ void load_slice(float (&tile)[kSimtDepth][kSimtTile + 4], const F& from,
                                           int64_t first, int64_t limit, int64_t k0, int64_t depth) {
  const int thread = int(threadIdx.x);
#pragma unroll
  for (int part = 0; part < kSimtTile * kSimtDepth / kSimtThreads; part++) {
    const int at = thread + part * kSimtThreads;
    // Neighbouring threads along the dim whose elements are neighbours.
    const int k = from.summed == 1 ? at % kSimtDepth : at / kSimtTile;
    const int i = from.summed == 1 ? at / kSimtDepth : at % kSimtTile;
    const bool there = first + i < limit && k0 + k < depth;
    tile[k][i] = there ? from.at(first + i, k0 + k) : 0.0f;
  }
}

// The thread's sums of rows i0 + 4 (thread / 16) + r and columns j0 + 4 (thread % 16) + c. All threads of the
// block call it.
template <class A, class B>
__device__ __forceinline__ void simt_product(float (&sum)[4][4], const A& a, const B& b, int64_t i0,
                                             int64_t m, int64_t j0, int64_t n, int64_t depth) {
  __shared__ float left[kSimtDepth][kSimtTile + 4], right[kSimtDepth][kSimtTile + 4];
  const int row = int(threadIdx.x) / 16 * 4, column = int(threadIdx.x) % 16 * 4;
#pragma unroll
  for (int r = 0; r < 4; r++)
#pragma unroll
    for (int c = 0; c < 4; c++) sum[r][c] = 0;
  for (int64_t k0 = 0; k0 < depth; k0 += kSimtDepth) {
    load_slice(left, a, i0, m, k0, depth);
    load_slice(right, b, j0, n, k0, depth);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kSimtDepth; k++)
#pragma unroll
      for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < 4; c++) sum[r][c] = fmaf(left[k][row + r], right[k][column + c], sum[r][c]);
    __syncthreads();
  }
}

// c (+)= a b + bias + residual. F: Factor, or what is like one.
template <class F, class Bias, class Out>
struct SimtMatmul {
  F a, b;
  Out* c = nullptr;
  const Bias* bias = nullptr;
  const Out* residual = nullptr;
  int64_t c_row = 0, residual_row = 0, m = 0, n = 0, k = 0;
  bool accumulate = false;
};
template <class F, class Bias, class Out>
__global__ void __launch_bounds__(kSimtThreads) matmul_simt(SimtMatmul<F, Bias, Out> p) {
  const int64_t i0 = int64_t(blockIdx.y) * kSimtTile, j0 = int64_t(blockIdx.x) * kSimtTile;
  float sum[4][4];
  simt_product(sum, p.a, p.b, i0, p.m, j0, p.n, p.k);
#pragma unroll
  for (int r = 0; r < 4; r++)
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const int64_t i = i0 + int(threadIdx.x) / 16 * 4 + r, j = j0 + int(threadIdx.x) % 16 * 4 + c;
      if (i >= p.m || j >= p.n) continue;
      float x = sum[r][c];
      if (p.bias) x += widen(p.bias[j]);
      if (p.residual) x += widen(p.residual[i * p.residual_row + j]);
      Out& out = p.c[i * p.c_row + j];
      if (p.accumulate) x += widen(out);
      out = narrow<Out>(x);
    }
}

// What follows from the operands is there: a, b and k. Args: MatmulArgs or Fp8MatmulArgs.
template <class F, class Bias, class Out, class Args>
void run_matmul_simt(SimtMatmul<F, Bias, Out> p, const Args& a, cudaStream_t stream) {
  p.c = a.c.template as<Out>(), p.c_row = a.c.stride[0];
  if (a.bias) p.bias = a.bias.template as<Bias>();
  if (a.residual) p.residual = a.residual.template as<Out>(), p.residual_row = a.residual.stride[0];
  p.m = a.c.shape[0], p.n = a.c.shape[1], p.accumulate = a.accumulate;
  require(ceil_div(p.m, kSimtTile) <= 65535, "a product of more rows than its grid has blocks");
  run_blocks(matmul_simt<F, Bias, Out>, Grid(ceil_div(p.n, kSimtTile), ceil_div(p.m, kSimtTile)),
             kSimtThreads, 0, stream, p);
}
template <class T, class Out>
void run_matmul_simt(const MatmulArgs& a, cudaStream_t stream) {
  SimtMatmul<Factor<T>, T, Out> p;
  const int64_t a_row = a.a.stride[0], b_row = a.b.stride[0];
  p.a = {a.a.as<T>(), a.trans_a ? 1 : a_row, a.trans_a ? a_row : 1};
  p.b = {a.b.as<T>(), a.trans_b ? b_row : 1, a.trans_b ? 1 : b_row};
  p.k = a.a.shape[a.trans_a ? 0 : 1];
  run_matmul_simt(p, a, stream);
}

}  // namespace trireme::cuda
