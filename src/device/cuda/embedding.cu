// Rows of a table by id, and the sum of gradients back into the table.
//
// Backward, without atomics on floats. First integer counts of each row's ids, and their prefix sums: where
// each row's list begins. Then the rank of each place n among the earlier places of the same id, so that
// lists are in ascending n. A block per piece of 128 places, from each list's beginning, sums the piece. At
// last a block per table row adds the sums of the pieces and the list's remaining places, a thread per chunk
// of columns, in f32, with one rounding.
//
// So the time of a frequent id is divided among blocks. The order depends on each id's places alone. The
// ranks compare each place with all before it: N^2 / 2 integer comparisons, 0.1 ms of an H100 at N = 65,536.
// Traffic: dy once, dtable written once (read too when accumulating).
#include "device/cuda/embedding_pieces.h"
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

struct Lists {
  const int32_t *ids, *begin, *order;
  int64_t first, rows;
};

// s += rows of dy at places order[from, to), columns [c, c + n), in that order; the loads of eight, whose
// places were loaded one turn before, are issued before the first is added. full: n is 8, and rows are
// 16-byte aligned.
template <bool full, class T>
__device__ __forceinline__ void add_places_of(const Rows<const T>& dy, const int32_t* order, int32_t from,
                                              int32_t to, int64_t c, int n, float (&s)[kChunk]) {
  constexpr int at_once = 8;
  auto load = [&](int32_t place, T(&raw)[kChunk]) { load8(dy.at(place) + c, full, full ? kChunk : n, raw); };
  auto add = [&](const T(&raw)[kChunk]) {
#pragma unroll
    for (int i = 0; i < kChunk; i++) s[i] += widen(raw[i]);
  };
  int32_t place[at_once] = {};
  if (from + at_once <= to) {
#pragma unroll
    for (int k = 0; k < at_once; k++) place[k] = order[from + k];
  }
  for (; from + at_once <= to; from += at_once) {
    T raw[at_once][kChunk];
#pragma unroll
    for (int k = 0; k < at_once; k++) load(place[k], raw[k]);
#pragma unroll
    for (int k = 0; k < at_once; k++) {
      const int32_t next = from + at_once + k;
      place[k] = order[next < to ? next : to - 1];
    }
#pragma unroll
    for (int k = 0; k < at_once; k++) add(raw[k]);
  }
  for (; from < to; from++) {
    T raw[kChunk];
    load(order[from], raw);
    add(raw);
  }
}
template <class T>
__device__ __forceinline__ void add_places(const Rows<const T>& dy, const int32_t* order, int32_t from,
                                           int32_t to, int64_t c, int n, float (&s)[kChunk]) {
  if (dy.whole && n == kChunk)
    add_places_of<true>(dy, order, from, to, c, n, s);
  else
    add_places_of<false>(dy, order, from, to, c, n, s);
}

// Piece p of the list [from, to) of a row begins at place b = from + 128 p of `order`, and its sum is row b /
// 128 of `pieces`: no other piece begins there. Block b / 128 finds the list by the row of the last place of
// its 128, which the piece must contain.
template <class T>
__global__ void __launch_bounds__(256, 2)
    sum_pieces(Rows<const T> dy, Lists lists, int64_t cols, float* pieces) {
  const int32_t slot = int32_t(blockIdx.x), total = lists.begin[lists.rows];
  const int32_t last = slot * kPiecePlaces + kPiecePlaces - 1;
  if (last >= total) return;
  const int64_t row = lists.ids[lists.order[last]] - lists.first;
  const int32_t from = lists.begin[row], to = lists.begin[row + 1];
  const int32_t begin = from + (slot - from / kPiecePlaces) * kPiecePlaces;
  if (begin + kPiecePlaces > to) return;
  for (int64_t c = int64_t(threadIdx.x) * kChunk; c < cols; c += int64_t(blockDim.x) * kChunk) {
    float s[kChunk] = {};
    add_places(dy, lists.order, begin, begin + kPiecePlaces, c, int(cols - c < kChunk ? cols - c : kChunk),
               s);
    float* out = pieces + int64_t(slot) * padded_columns(cols) + c;
#pragma unroll
    for (int i = 0; i < kChunk; i++) out[i] = s[i];
  }
}

template <class T, class D>
__global__ void __launch_bounds__(256) sum_places(Rows<const T> dy, Rows<D> table, int64_t cols, Lists lists,
                                                  const float* pieces, bool accumulate) {
  const int64_t row = blockIdx.x;
  const int32_t from = lists.begin[row], to = lists.begin[row + 1];
  if (from == to && accumulate) return;
  const int32_t whole = (to - from) / kPiecePlaces;
  for (int64_t c = int64_t(threadIdx.x) * kChunk; c < cols; c += int64_t(blockDim.x) * kChunk) {
    const int n = int(cols - c < kChunk ? cols - c : kChunk);
    float s[kChunk] = {};
    const float* piece = pieces + int64_t(from / kPiecePlaces) * padded_columns(cols) + c;
    for (int32_t p = 0; p < whole; p++, piece += padded_columns(cols)) {
#pragma unroll
      for (int k = 0; k < kChunk; k++) s[k] += piece[k];
    }
    add_places(dy, lists.order, from + whole * kPiecePlaces, to, c, n, s);
    if (accumulate) {
      float v[kChunk];
      table.load(row, c, n, v);
#pragma unroll
      for (int k = 0; k < kChunk; k++) s[k] = v[k] + s[k];
    }
    table.store(s, row, c, n);
  }
}

template <class T, class D>
void scatter(const EmbeddingBackwardArgs& a, const Lists& lists, float* pieces, cudaStream_t stream) {
  const int64_t cols = a.dtable.shape[1];
  const int threads = row_threads(cols, 256);
  run_blocks(sum_pieces<T>, embedding_pieces(a.ids.numel()), threads, 0, stream, rows_of<const T>(a.dy),
             lists, cols, pieces);
  run_blocks(sum_places<T, D>, a.dtable.shape[0], threads, 0, stream, rows_of<const T>(a.dy),
             rows_of<D>(a.dtable), cols, lists, static_cast<const float*>(pieces), a.accumulate);
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
  float* pieces = reinterpret_cast<float*>(scratch.data);
  int32_t* begin =
      reinterpret_cast<int32_t*>(pieces + embedding_pieces(n) * padded_columns(a.dtable.shape[1]));
  int32_t* order = begin + rows + 1;
  const int32_t* ids = n ? a.ids.as<int32_t>() : nullptr;
  const int64_t blocks = ceil_div(n, kPlaceThreads);
  set_bytes(begin, 0, (rows + 1) * int64_t(sizeof *begin), stream);
  run_blocks(count_ids, blocks, kPlaceThreads, 0, stream, ids, n, a.first, rows, begin);
  run_blocks(scan_counts, 1, kScanThreads, 0, stream, begin, rows + 1);
  run_blocks(place_ids, blocks, kPlaceThreads, 0, stream, ids, n, a.first, rows, begin, order);
  by_type(a.dy.dtype, [&]<class T>(T) {
    const Lists lists{ids, begin, order, a.first, rows};
    a.dtable.dtype == DType::f32 ? scatter<T, float>(a, lists, pieces, stream)
                                 : scatter<T, T>(a, lists, pieces, stream);
  });
}

}  // namespace trireme::cuda
