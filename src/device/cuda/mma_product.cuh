// Products of blocks on tensor cores (warp_mma.cuh), bf16 and f16, sums f32: what the grouped products do
// with one expert's rows.
//
// A block of 8 warps owns 128 x 128 sums, a warp 64 x 32 of them; slices of 32 of the summed dim come through
// three stages of shared memory, two of them on their way while one is used. An operand lies in shared memory
// as in memory: rows of the dim that stays with the summed dim in them, or the other way round; rows padded
// by 16 bytes. Each sum is one chain in ascending k, 16 at a time: the same bits every time.
#pragma once
#include "device/cuda/warp_mma.cuh"

namespace trireme::cuda {

inline constexpr int kMmaTile = 128, kMmaDepth = 32, kMmaStages = 3, kProductThreads = 256;

// An operand whose rows are 16-byte aligned. summed_rows: its rows are of the summed dim.
template <class T, bool summed_rows>
struct MmaFactor {
  static constexpr int rows = summed_rows ? kMmaDepth : kMmaTile,
                       columns = summed_rows ? kMmaTile : kMmaDepth;
  static constexpr int row = columns + 8, tile = rows * row;  // elements

  const T* data = nullptr;
  int64_t stride = 0;  // of rows, in elements

  // Starts the copy of [first, first + 128) of the dim that stays and [k0, k0 + 32) of the summed one; from
  // `limit` and `depth` on there are zeros. Both, where they are in rows, end at a multiple of 8.
  __device__ __forceinline__ void fetch(T* to, int64_t first, int64_t limit, int64_t k0,
                                        int64_t depth) const {
    const int64_t y0 = summed_rows ? k0 : first, y_end = summed_rows ? depth : limit;
    const int64_t x0 = summed_rows ? first : k0, x_end = summed_rows ? limit : depth;
#pragma unroll
    for (int i = int(threadIdx.x); i < rows * columns / 8; i += kProductThreads) {
      const int y = i / (columns / 8), x = i % (columns / 8) * 8;
      const bool there = y0 + y < y_end && x0 + x < x_end;
      copy16(to + y * row + x, data + (there ? (y0 + y) * stride + x0 + x : 0), there);
    }
  }
  // Left operand of 16 rows from i on, summed dim from k on.
  __device__ __forceinline__ static void left(uint32_t (&a)[4], const T* from, int i, int k) {
    const int lane = int(threadIdx.x) % 32;
    if constexpr (summed_rows)
      load_transposed(a, from + (k + lane % 8 + lane / 16 * 8) * row + i + lane / 8 % 2 * 8);
    else
      load_matrices(a, from + (i + lane % 16) * row + k + lane / 16 * 8);
  }
  // Right operands of two tiles of 8 columns from j on.
  __device__ __forceinline__ static void right(uint32_t (&b)[4], const T* from, int j, int k) {
    const int lane = int(threadIdx.x) % 32;
    if constexpr (summed_rows)
      load_transposed(b, from + (k + lane % 16) * row + j + lane / 16 * 8);
    else
      load_matrices(b, from + (j + lane % 8 + lane / 16 * 8) * row + k + lane / 8 % 2 * 8);
  }
};

template <class A, class B>
inline constexpr int64_t kProductBytes = kMmaStages* int64_t(A::tile + B::tile) * 2;

// sum[m][n]: of rows i0 + 64 (warp / 4) + 16 m, columns j0 + 32 (warp % 4) + 8 n, as fragments of
// warp_mma.cuh hold them. All threads of the block call it, once.
template <class T, bool kARows, bool kBRows>
__device__ __forceinline__ void mma_product(float (&sum)[4][4][4], const MmaFactor<T, kARows>& a,
                                            const MmaFactor<T, kBRows>& b, int64_t i0, int64_t m, int64_t j0,
                                            int64_t n, int64_t depth) {
  using A = MmaFactor<T, kARows>;
  using B = MmaFactor<T, kBRows>;
  T* left = dynamic_shared<T>();
  T* right = left + kMmaStages * A::tile;
  const int warp = int(threadIdx.x) / 32, row = warp / 4 * 64, column = warp % 4 * 32;
  const int64_t slices = (depth + kMmaDepth - 1) / kMmaDepth;
  auto fetch = [&](int64_t s) {
    if (s < slices) {
      const int stage = int(s % kMmaStages);
      a.fetch(left + stage * A::tile, i0, m, s * kMmaDepth, depth);
      b.fetch(right + stage * B::tile, j0, n, s * kMmaDepth, depth);
    }
    end_copies();
  };
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) sum[i][j][e] = 0;
#pragma unroll
  for (int s = 0; s < kMmaStages - 1; s++) fetch(s);
  for (int64_t s = 0; s < slices; s++) {
    wait_copies<kMmaStages - 2>();
    __syncthreads();  // slice s has come, and nobody reads slice s - 1 any more
    fetch(s + kMmaStages - 1);
    const T* left_now = left + int(s % kMmaStages) * A::tile;
    const T* right_now = right + int(s % kMmaStages) * B::tile;
#pragma unroll
    for (int k = 0; k < kMmaDepth; k += 16) {
      uint32_t x[4][4], y[2][4];
#pragma unroll
      for (int i = 0; i < 4; i++) A::left(x[i], left_now, row + 16 * i, k);
#pragma unroll
      for (int j = 0; j < 2; j++) B::right(y[j], right_now, column + 16 * j, k);
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) mma(sum[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1], T());
    }
  }
  wait_copies<0>();
}

// f(row, column, two neighbouring sums) for all of the thread's that are rows [.., m) and columns [.., n), of
// which n is even.
template <class F>
__device__ __forceinline__ void each_pair(const float (&sum)[4][4][4], int64_t i0, int64_t m, int64_t j0,
                                          int64_t n, const F& f) {
  const int warp = int(threadIdx.x) / 32, g = int(threadIdx.x) % 32 / 4, t = int(threadIdx.x) % 4;
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int64_t row = i0 + warp / 4 * 64 + 16 * i + 8 * half + g;
        const int64_t column = j0 + warp % 4 * 32 + 8 * j + 2 * t;
        if (row < m && column < n) f(row, column, sum[i][j][2 * half], sum[i][j][2 * half + 1]);
      }
}

}  // namespace trireme::cuda
