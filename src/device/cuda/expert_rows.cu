// Rows of tokens to rows of experts and back (ops.h): a gather, and a weighted sum of k rows a token. Each
// output row has one writer and sums of fixed order. Traffic: each row of x read once and of y written once.
#include "device/cuda/indices.h"
#include "device/cuda/reduce.cuh"
#include "device/cuda/values.cuh"

namespace trireme::cuda {
namespace {

template <class T>
struct PermuteChunk {
  Rows<const T> x;
  Rows<T> y;
  const int32_t* source;
  int64_t rows, k;
  __device__ void operator()(int64_t row, int64_t c, int n) const {
    const int64_t from = source[row];
    T v[kChunk] = {};
    if (from >= 0 && from < rows) load8(x.at(from / k) + c, x.whole, n, v);
    store8(v, y.at(row) + c, y.whole, n);
  }
};

template <class T>
struct CombineChunk {
  Rows<const T> x, add;
  Rows<T> y;
  const int32_t* place;
  const float* weights;  // null: all 1
  int64_t rows, k;
  __device__ void operator()(int64_t token, int64_t c, int n) const {
    float s[kChunk] = {}, v[kChunk];
    if (add.data) add.load(token, c, n, s);
    for (int64_t j = 0; j < k; j++) {
      const int64_t from = place[token * k + j];
      if (from < 0 || from >= rows) continue;
      const float w = weights ? weights[token * k + j] : 1.0f;
      x.load(from, c, n, v);
#pragma unroll
      for (int i = 0; i < kChunk; i++) s[i] = fmaf(w, v[i], s[i]);
    }
    y.store(s, token, c, n);
  }
};

template <class T>
struct CombineBackward {
  Rows<const T> dy, x;
  Rows<T> dx;
  const int32_t* place;
  const float* weights;
  float* dweights;
  int64_t rows, k, cols;
};
// A block a choice. dx may be x: a thread reads what it overwrites.
template <class T>
__global__ void __launch_bounds__(256) combine_backward(CombineBackward<T> a) {
  const int64_t i = blockIdx.x, row = a.place[i];
  float dot = 0;
  if (row >= 0 && row < a.rows) {
    const float w = a.weights[i];
    for (int64_t c = int64_t(threadIdx.x) * kChunk; c < a.cols; c += int64_t(blockDim.x) * kChunk) {
      const int n = int(a.cols - c < kChunk ? a.cols - c : kChunk);
      float d[kChunk], v[kChunk];
      a.dy.load(i / a.k, c, n, d);
      a.x.load(row, c, n, v);
#pragma unroll
      for (int e = 0; e < kChunk; e++) dot = fmaf(d[e], v[e], dot), d[e] = w * d[e];
      a.dx.store(d, row, c, n);
    }
  }
  dot = block_sum(dot);
  if (threadIdx.x == 0) a.dweights[i] = dot;
}

// Rows that no choice has become 0.
template <class T>
struct ClearChunk {
  Rows<T> dx;
  const int32_t* source;
  __device__ void operator()(int64_t row, int64_t c, int n) const {
    if (source[row] >= 0) return;
    const T zeros[kChunk] = {};
    store8(zeros, dx.at(row) + c, dx.whole, n);
  }
};

}  // namespace

void cuda_launch(const PermuteRowsArgs& a, const Tensor&, CudaContext& ctx, cudaStream_t stream) {
  const int64_t rows = a.source.numel();
  if (rows == 0) return;
  check_indices(a.source, -1, rows, "permute_rows: source", "choices are -1 (none) or", ctx, stream);
  by_type(a.x.dtype, [&]<class T>(T) {
    each_chunk(rows, a.x.shape[1], stream,
               PermuteChunk<T>{rows_of<const T>(a.x), rows_of<T>(a.y), a.source.as<int32_t>(), rows,
                               rows / a.x.shape[0]});
  });
}
void cuda_launch(const CombineRowsArgs& a, const Tensor&, CudaContext& ctx, cudaStream_t stream) {
  check_indices(a.place, -1, a.x.shape[0], "combine_rows: place", "rows are -1 (none) or", ctx, stream);
  by_type(a.x.dtype, [&]<class T>(T) {
    each_chunk(a.place.shape[0], a.x.shape[1], stream,
               CombineChunk<T>{rows_of<const T>(a.x), rows_of<const T>(a.add), rows_of<T>(a.y),
                               a.place.as<int32_t>(), a.weights ? a.weights.as<float>() : nullptr,
                               a.x.shape[0], a.place.shape[1]});
  });
}
void cuda_launch(const CombineRowsBackwardArgs& a, const Tensor&, CudaContext& ctx, cudaStream_t stream) {
  const int64_t rows = a.x.shape[0], cols = a.x.shape[1];
  check_indices(a.place, -1, rows, "combine_rows_backward: place", "rows are -1 (none) or", ctx, stream);
  by_type(a.x.dtype, [&]<class T>(T) {
    run_blocks(combine_backward<T>, a.place.numel(), row_threads(cols, 256), 0, stream,
               CombineBackward<T>{rows_of<const T>(a.dy), rows_of<const T>(a.x), rows_of<T>(a.dx),
                                  a.place.as<int32_t>(), a.weights.as<float>(), a.dweights.as<float>(), rows,
                                  a.place.shape[1], cols});
    each_chunk(a.source.numel(), cols, stream, ClearChunk<T>{rows_of<T>(a.dx), a.source.as<int32_t>()});
  });
}

}  // namespace trireme::cuda
