// Rows of a table by id, and the sum of gradients back into the table.
//
// Backward, without atomics on floats: integer counts of each row's ids, their prefix sums (where each row's
// list begins), and for each place n its rank among the earlier places of the same id, so that lists are in
// ascending n; then a block a table row adds its list in that order, a thread a chunk of columns, in f32, one
// rounding. The ranks compare each place with all before it: N^2 / 2 integer comparisons, 0.1 ms of an H100
// at N = 65,536. Traffic: dy once, dtable written once (read too when accumulating).
#include "device/cuda/indices.h"
#include "device/cuda/reduce.cuh"
#include "device/cuda/values.cuh"

namespace trireme::cuda {
namespace {

template <class T>
struct GatherChunk {
  const int32_t* ids;
  Rows<const T> table;
  Rows<T> y;
  int64_t first, rows;
  bool accumulate;
  __device__ void operator()(int64_t place, int64_t c, int n) const {
    const int64_t row = ids[place] - first;
    const bool here = row >= 0 && row < rows;
    if (!here && accumulate) return;
    float v[kChunk] = {}, before[kChunk];
    if (here) table.load(row, c, n, v);
    if (accumulate) {
      y.load(place, c, n, before);
#pragma unroll
      for (int i = 0; i < kChunk; i++) v[i] = before[i] + v[i];
    }
    y.store(v, place, c, n);
  }
};

constexpr int kPlaceThreads = 256;

// begin[row + 1] += 1 for the ids of this table; begin [rows + 1] is 0 before.
__global__ void count_ids(const int32_t* ids, int64_t n, int64_t first, int64_t rows, int32_t* begin) {
  const int64_t i = int64_t(blockIdx.x) * kPlaceThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t row = ids[i] - first;
  if (row >= 0 && row < rows) atomicAdd(begin + row + 1, 1);
}

// begin[i] = the sum of begin[0, i], in one block: a thread a run of neighbours.
constexpr int kScanThreads = 1024;
__global__ void __launch_bounds__(kScanThreads) scan_counts(int32_t* begin, int64_t n) {
  __shared__ int32_t before[kScanThreads];
  const int64_t run = (n + kScanThreads - 1) / kScanThreads, from = run * threadIdx.x,
                to = from + run < n ? from + run : n;
  int32_t own = 0;
  for (int64_t i = from; i < to; i++) own += begin[i];
  before[threadIdx.x] = own;
  __syncthreads();
  for (int step = 1; step < kScanThreads; step *= 2) {
    const int32_t other = int(threadIdx.x) >= step ? before[threadIdx.x - unsigned(step)] : 0;
    __syncthreads();
    before[threadIdx.x] += other;
    __syncthreads();
  }
  int32_t sum = before[threadIdx.x] - own;
  for (int64_t i = from; i < to; i++) begin[i] = sum += begin[i];
}

// order[begin[row] + rank] = n.
__global__ void __launch_bounds__(kPlaceThreads)
    place_ids(const int32_t* ids, int64_t n, int64_t first, int64_t rows, const int32_t* begin,
              int32_t* order) {
  __shared__ int32_t tile[kPlaceThreads];
  const int64_t own_begin = int64_t(blockIdx.x) * kPlaceThreads, i = own_begin + threadIdx.x;
  const int32_t id = i < n ? ids[i] : -1;
  int32_t rank = 0;
  for (int64_t at = 0; at <= own_begin; at += kPlaceThreads) {
    __syncthreads();
    tile[threadIdx.x] = at + threadIdx.x < n ? ids[at + threadIdx.x] : -1;
    __syncthreads();
    const int end = at < own_begin ? kPlaceThreads : int(threadIdx.x);
    for (int k = 0; k < end; k++) rank += tile[k] == id;
  }
  const int64_t row = id - first;
  if (i < n && row >= 0 && row < rows) order[begin[row] + rank] = int32_t(i);
}

template <class T, class D>
__global__ void __launch_bounds__(256)
    sum_places(Rows<const T> dy, Rows<D> table, int64_t cols, const int32_t* begin, const int32_t* order,
               bool accumulate) {
  const int64_t row = blockIdx.x;
  const int32_t from = begin[row], to = begin[row + 1];
  if (from == to && accumulate) return;
  for (int64_t c = int64_t(threadIdx.x) * kChunk; c < cols; c += int64_t(blockDim.x) * kChunk) {
    const int n = int(cols - c < kChunk ? cols - c : kChunk);
    float s[kChunk] = {}, v[kChunk];
    for (int32_t i = from; i < to; i++) {
      dy.load(order[i], c, n, v);
#pragma unroll
      for (int k = 0; k < kChunk; k++) s[k] += v[k];
    }
    if (accumulate) {
      table.load(row, c, n, v);
#pragma unroll
      for (int k = 0; k < kChunk; k++) s[k] = v[k] + s[k];
    }
    table.store(s, row, c, n);
  }
}

template <class T, class D>
void scatter(const EmbeddingBackwardArgs& a, const int32_t* begin, const int32_t* order,
             cudaStream_t stream) {
  const int64_t cols = a.dtable.shape[1];
  run_blocks(sum_places<T, D>, a.dtable.shape[0], row_threads(cols, 256), 0, stream, rows_of<const T>(a.dy),
             rows_of<D>(a.dtable), cols, begin, order, a.accumulate);
}

}  // namespace

void cuda_launch(const EmbeddingArgs& a, const Tensor&, CudaContext& ctx, cudaStream_t stream) {
  check_indices(a.ids, 0, a.vocab ? a.vocab : a.table.shape[0], "embedding: id", "the table has ids", ctx,
                stream);
  by_type(a.table.dtype, [&]<class T>(T) {
    each_chunk(a.ids.numel(), a.table.shape[1], stream,
               GatherChunk<T>{a.ids.numel() ? a.ids.as<int32_t>() : nullptr, rows_of<const T>(a.table),
                              rows_of<T>(a.y), a.first, a.table.shape[0], a.accumulate});
  });
}

void cuda_launch(const EmbeddingBackwardArgs& a, const Tensor& scratch, CudaContext& ctx,
                 cudaStream_t stream) {
  const int64_t n = a.ids.numel(), rows = a.dtable.shape[0];
  check_indices(a.ids, 0, a.vocab ? a.vocab : rows, "embedding_backward: id", "the table has ids", ctx,
                stream);
  if (rows == 0) return;
  int32_t *begin = reinterpret_cast<int32_t*>(scratch.data), *order = begin + rows + 1;
  const int32_t* ids = n ? a.ids.as<int32_t>() : nullptr;
  const int64_t blocks = ceil_div(n, kPlaceThreads);
  set_bytes(begin, 0, (rows + 1) * int64_t(sizeof *begin), stream);
  run_blocks(count_ids, blocks, kPlaceThreads, 0, stream, ids, n, a.first, rows, begin);
  run_blocks(scan_counts, 1, kScanThreads, 0, stream, begin, rows + 1);
  run_blocks(place_ids, blocks, kPlaceThreads, 0, stream, ids, n, a.first, rows, begin, order);
  by_type(a.dy.dtype, [&]<class T>(T) {
    a.dtable.dtype == DType::f32 ? scatter<T, float>(a, begin, order, stream)
                                 : scatter<T, T>(a, begin, order, stream);
  });
}

}  // namespace trireme::cuda
