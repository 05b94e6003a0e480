// Products of ragged groups of rows: rows [offsets[e], offsets[e + 1]) with expert e. Where rows lie is read
// on the device: the host never waits for a router.
//
// Forward: as many blocks of rows as there can be at most, R / tile and one for each expert's last, and each
// finds its expert by going through the offsets; rows of no expert are groups of their own, which become 0.
// Weights' gradient: a block of dw sums over all of its expert's rows in ascending order. On tensor cores
// (mma_product.cuh) where rows are 16-byte aligned and of bf16 or f16, else by matmul_simt.cuh: sums in f32,
// one rounding, no atomics, the same bits every time. FLOPs: 2 R K N each.
#pragma once
#include "device/cuda/matmul_simt.cuh"
#include "device/cuda/mma_product.cuh"

namespace trireme::cuda {

// Rows [begin, end) of group e; e = -1: of no expert.
struct RowTile {
  int64_t begin = 0, end = 0;
  int expert = -1;
};

// Offsets come from memory: what a kernel follows stays within the rows.
__device__ inline int64_t offset_within(const int32_t* offsets, int e, int64_t rows) {
  const int64_t o = offsets[e];
  return o < 0 ? 0 : o > rows ? rows : o;
}
// Tile `index` of all groups in order: rows before the first expert, experts, rows behind the last.
__device__ inline RowTile tile_of(const int32_t* offsets, int experts, int64_t rows, int64_t index,
                                  int tile) {
  int64_t begin = 0;
  for (int e = -1; e <= experts; e++) {
    int64_t end = e < experts ? offset_within(offsets, e + 1, rows) : rows;
    end = end < begin ? begin : end;
    const int64_t tiles = (end - begin + tile - 1) / tile;
    if (index < tiles) {
      const int64_t from = begin + index * tile;
      return {from, from + tile < end ? from + tile : end, e < experts ? e : -1};
    }
    index -= tiles, begin = end;
  }
  return {};
}
inline int64_t most_tiles(int64_t rows, int64_t experts, int tile) {
  return rows / tile + experts + 2;
}

template <class T>
struct GroupedForward {
  const T *x = nullptr, *w = nullptr;
  T* y = nullptr;
  const int32_t* offsets = nullptr;
  int64_t x_row = 0, y_row = 0, rows = 0, k = 0, n = 0;
  int experts = 0;
  bool trans_w = false;
};

// Rows of no expert, columns [j0, j0 + tile).
template <class T>
__device__ void zero_tile(const GroupedForward<T>& p, const RowTile& rows, int64_t j0, int tile) {
  const int64_t columns = p.n - j0 < tile ? p.n - j0 : tile;
  for (int64_t i = threadIdx.x; i < (rows.end - rows.begin) * columns; i += blockDim.x)
    p.y[(rows.begin + i / columns) * p.y_row + j0 + i % columns] = narrow<T>(0.0f);
}

// Block (columns, row tile).
template <class T>
__global__ void __launch_bounds__(kSimtThreads) grouped_simt(GroupedForward<T> p) {
  const int64_t j0 = int64_t(blockIdx.x) * kSimtTile;
  const RowTile rows = tile_of(p.offsets, p.experts, p.rows, blockIdx.y, kSimtTile);
  if (rows.begin == rows.end) return;
  if (rows.expert < 0) return zero_tile(p, rows, j0, kSimtTile);
  const T* w = p.w + int64_t(rows.expert) * p.k * p.n;
  const Factor<T> a{p.x, p.x_row, 1}, b{w, p.trans_w ? p.k : 1, p.trans_w ? 1 : p.n};
  float sum[4][4];
  simt_product(sum, a, b, rows.begin, rows.end, j0, p.n, p.k);
#pragma unroll
  for (int r = 0; r < 4; r++)
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const int64_t i = rows.begin + int(threadIdx.x) / 16 * 4 + r, j = j0 + int(threadIdx.x) % 16 * 4 + c;
      if (i < rows.end && j < p.n) p.y[i * p.y_row + j] = narrow<T>(sum[r][c]);
    }
}
template <class T, bool trans_w>
__global__ void __launch_bounds__(kProductThreads) grouped_mma(GroupedForward<T> p) {
  const int64_t j0 = int64_t(blockIdx.x) * kMmaTile;
  const RowTile rows = tile_of(p.offsets, p.experts, p.rows, blockIdx.y, kMmaTile);
  if (rows.begin == rows.end) return;
  if (rows.expert < 0) return zero_tile(p, rows, j0, kMmaTile);
  const T* w = p.w + int64_t(rows.expert) * p.k * p.n;
  float sum[4][4][4];
  mma_product(sum, MmaFactor<T, false>{p.x, p.x_row}, MmaFactor<T, !trans_w>{w, trans_w ? p.k : p.n},
              rows.begin, rows.end, j0, p.n, p.k);
  each_pair(sum, rows.begin, rows.end, j0, p.n, [&](int64_t i, int64_t j, float low, float high) {
    *reinterpret_cast<uint32_t*>(p.y + i * p.y_row + j) = pair_of<T>(low, high);
  });
}

template <class T>
struct GroupedWeight {
  const T *dy = nullptr, *x = nullptr;
  void* dw = nullptr;
  const int32_t* offsets = nullptr;
  int64_t dy_row = 0, x_row = 0, rows = 0, k = 0, n = 0;
  bool sums = false, accumulate = false;  // sums: dw is f32

  __device__ void put(int64_t at, float x) const {
    if (sums) {
      float* out = static_cast<float*>(dw) + at;
      *out = (accumulate ? *out : 0.0f) + x;
    } else {
      T* out = static_cast<T*>(dw) + at;
      *out = narrow<T>((accumulate ? widen(*out) : 0.0f) + x);
    }
  }
};
// Block (columns of dw, rows of dw, expert).
template <class T>
__global__ void __launch_bounds__(kSimtThreads) grouped_weight_simt(GroupedWeight<T> p) {
  const int e = int(blockIdx.z);
  const int64_t begin = offset_within(p.offsets, e, p.rows), end = offset_within(p.offsets, e + 1, p.rows);
  const int64_t i0 = int64_t(blockIdx.y) * kSimtTile, j0 = int64_t(blockIdx.x) * kSimtTile;
  const Factor<T> a{p.dy + begin * p.dy_row, 1, p.dy_row}, b{p.x + begin * p.x_row, 1, p.x_row};
  float sum[4][4];
  simt_product(sum, a, b, i0, p.n, j0, p.k, end - begin);
#pragma unroll
  for (int r = 0; r < 4; r++)
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const int64_t i = i0 + int(threadIdx.x) / 16 * 4 + r, j = j0 + int(threadIdx.x) % 16 * 4 + c;
      if (i < p.n && j < p.k) p.put((e * p.n + i) * p.k + j, sum[r][c]);
    }
}
template <class T>
__global__ void __launch_bounds__(kProductThreads) grouped_weight_mma(GroupedWeight<T> p) {
  const int e = int(blockIdx.z);
  const int64_t begin = offset_within(p.offsets, e, p.rows), end = offset_within(p.offsets, e + 1, p.rows);
  const int64_t i0 = int64_t(blockIdx.y) * kMmaTile, j0 = int64_t(blockIdx.x) * kMmaTile;
  float sum[4][4][4];
  mma_product(sum, MmaFactor<T, true>{p.dy + begin * p.dy_row, p.dy_row},
              MmaFactor<T, true>{p.x + begin * p.x_row, p.x_row}, i0, p.n, j0, p.k, end - begin);
  each_pair(sum, i0, p.n, j0, p.k, [&](int64_t i, int64_t j, float low, float high) {
    p.put((e * p.n + i) * p.k + j, low);
    p.put((e * p.n + i) * p.k + j + 1, high);
  });
}

inline bool chunked_rows(const Tensor& t) {
  return aligned16(t.data, t.shape[0] > 1 ? t.stride[0] * size_of(t.dtype) : 0);
}
inline bool takes_mma(const GroupedMatmulArgs& a, const CudaContext& ctx) {
  return ctx.major >= 8 && a.x.shape[1] % 8 == 0 && a.y.shape[1] % 8 == 0 && chunked_rows(a.x) &&
         chunked_rows(a.y) && aligned16(a.w.data, 0);
}
inline bool takes_mma(const GroupedMatmulWeightArgs& a, const CudaContext& ctx) {
  return ctx.major >= 8 && a.x.shape[1] % 8 == 0 && a.dy.shape[1] % 8 == 0 && chunked_rows(a.x) &&
         chunked_rows(a.dy);
}

template <class T>
void run_grouped(const GroupedMatmulArgs& a, const CudaContext& ctx, cudaStream_t stream) {
  GroupedForward<T> p;
  p.x = a.x.as<T>(), p.w = a.w.as<T>(), p.y = a.y.as<T>(), p.offsets = a.offsets.as<int32_t>();
  p.x_row = a.x.stride[0], p.y_row = a.y.stride[0], p.rows = a.x.shape[0];
  p.k = a.x.shape[1], p.n = a.y.shape[1], p.experts = int(a.w.shape[0]), p.trans_w = a.trans_w;
  if constexpr (sizeof(T) == 2)
    if (takes_mma(a, ctx)) {
      auto run = [&](auto kernel, int64_t bytes) {
        allow_shared(kernel, bytes);
        run_blocks(kernel, Grid(ceil_div(p.n, kMmaTile), most_tiles(p.rows, p.experts, kMmaTile)),
                   kProductThreads, bytes, stream, p);
      };
      if (a.trans_w)
        run(grouped_mma<T, true>, kProductBytes<MmaFactor<T, false>, MmaFactor<T, false>>);
      else
        run(grouped_mma<T, false>, kProductBytes<MmaFactor<T, false>, MmaFactor<T, true>>);
      return;
    }
  run_blocks(grouped_simt<T>, Grid(ceil_div(p.n, kSimtTile), most_tiles(p.rows, p.experts, kSimtTile)),
             kSimtThreads, 0, stream, p);
}

template <class T>
void run_grouped_weight(const GroupedMatmulWeightArgs& a, const CudaContext& ctx, cudaStream_t stream) {
  GroupedWeight<T> p;
  p.dy = a.dy.as<T>(), p.x = a.x.as<T>(), p.dw = a.dw.data, p.offsets = a.offsets.as<int32_t>();
  p.dy_row = a.dy.stride[0], p.x_row = a.x.stride[0], p.rows = a.x.shape[0];
  p.k = a.x.shape[1], p.n = a.dy.shape[1];
  p.sums = a.dw.dtype == DType::f32, p.accumulate = a.accumulate;
  const int64_t experts = a.dw.shape[0];
  if constexpr (sizeof(T) == 2)
    if (takes_mma(a, ctx)) {
      constexpr int64_t bytes = kProductBytes<MmaFactor<T, true>, MmaFactor<T, true>>;
      allow_shared(grouped_weight_mma<T>, bytes);
      run_blocks(grouped_weight_mma<T>, Grid(ceil_div(p.k, kMmaTile), ceil_div(p.n, kMmaTile), experts),
                 kProductThreads, bytes, stream, p);
      return;
    }
  run_blocks(grouped_weight_simt<T>, Grid(ceil_div(p.k, kSimtTile), ceil_div(p.n, kSimtTile), experts),
             kSimtThreads, 0, stream, p);
}

}  // namespace trireme::cuda
