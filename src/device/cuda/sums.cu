// Sums that end in few numbers: column_sum, square_sums, count_nonfinite, and the blocks' sums of
// partials.cuh.
//
// column_sum: db[C] (+)= sum over rows of dy [N, C] (columns.cuh), then the blocks of rows in order; reads 2
// or 4 B an element. square_sums: one warp takes a block of 4,096 elements, lane l the elements l, l + 32,
// ... in double. The 32 sums are added in order: bit for bit the CPU's; squares of f32 are exact in
// double. count_nonfinite: integers, added in any order.
#include "device/cuda/columns.cuh"
#include "device/cuda/strided.cuh"
#include "mesh/shard.h"

namespace trireme::cuda {
namespace {

template <class T, int width>
struct ColumnOfDy {
  static constexpr int kWidth = width, kSums = 1, kAtOnce = 8;
  HeadRows<const T> dy;

  using Row = Piece<T, width>;
  struct Walk {
    RowWalk<T, 1> rows;
    __device__ __forceinline__ Walk(const ColumnOfDy& f, int64_t row, int64_t c) : rows({f.dy}, row, c) {}
    __device__ __forceinline__ Row next() {
      const T* at[1];
      rows.next(at);
      return Row::load(at[0]);
    }
  };
  static __device__ __forceinline__ void add(const Row& r, float (&s)[kSums][width]) {
#pragma unroll
    for (int i = 0; i < width; i++) s[0][i] += widen(r.t[i]);
  }
};

// blockIdx.y: which sum. The loads of 16 blocks' sums are issued before the first is added.
constexpr int kAddThreads = 128;
template <class T>
__global__ void __launch_bounds__(kAddThreads)
    add_blocks(PartialRows p, T* out, T* second_out, int64_t cols) {
  constexpr int at_once = 16;
  const int64_t c = int64_t(blockIdx.x) * kAddThreads + threadIdx.x;
  if (c >= cols) return;
  const float* from = p.data + int64_t(blockIdx.y) * p.second + c;
  T* to = (blockIdx.y ? second_out : out) + c;
  float s = 0;
  int left = int(p.blocks);
  for (; left >= at_once; left -= at_once) {
    float v[at_once];
#pragma unroll
    for (int k = 0; k < at_once; k++) v[k] = from[k * p.stride];
#pragma unroll
    for (int k = 0; k < at_once; k++) s += v[k];
    from += at_once * p.stride;
  }
  for (; left > 0; left--, from += p.stride) s += *from;
  *to = narrow<T>(p.accumulate ? widen(*to) + s : s);
}

constexpr int kSquareWarps = 8;  // of a block
template <class T>
__global__ void __launch_bounds__(kSquareWarps * 32) sum_squares(const T* x, int64_t n, double* sums) {
  const int64_t block = int64_t(blockIdx.x) * kSquareWarps + threadIdx.x / 32;
  const int64_t begin = block * kFlatBlock, end = begin + kFlatBlock < n ? begin + kFlatBlock : n;
  const int lane = int(threadIdx.x % 32);
  double s = 0;
  for (int64_t i = begin + lane; i < end; i += 32) {
    const double e = double(widen(x[i]));
    s += e * e;
  }
  double total = 0;
  for (int l = 0; l < 32; l++) total += __shfl_sync(kAllLanes, s, l);
  if (lane == 0 && begin < n) sums[block] = total;
}

constexpr int kCountThreads = 256;
// U: an unsigned type of the element's size; exponent: its bits that are all ones in infinities and NaN.
template <class U>
__global__ void __launch_bounds__(kCountThreads)
    count_not_finite(const U* x, StridedPlaces places, int64_t n, U exponent, unsigned long long* count) {
  long long own = 0;
  for (int64_t i = int64_t(blockIdx.x) * kCountThreads + threadIdx.x; i < n;
       i += int64_t(gridDim.x) * kCountThreads)
    own += (x[places.at(i)] & exponent) == exponent;
  own = block_sum(own);
  if (threadIdx.x == 0 && own > 0) atomicAdd(count, (unsigned long long)(own));
}
template <class U>
void count_as(const CountNonfiniteArgs& p, U exponent, CudaContext& ctx, cudaStream_t stream) {
  const int64_t n = p.x.numel(), most = 8 * int64_t(ctx.multiprocessors);
  const int64_t blocks = ceil_div(n, kCountThreads);
  run_blocks(count_not_finite<U>, blocks < most ? blocks : most, kCountThreads, 0, stream,
             reinterpret_cast<const U*>(p.x.data), StridedPlaces(p.x), n, exponent,
             reinterpret_cast<unsigned long long*>(p.count.as<int64_t>()));
}

}  // namespace

void add_partials(const PartialRows& p, const Tensor& out, const Tensor& second_out, cudaStream_t stream) {
  require(!second_out || second_out.dtype == out.dtype, "two sums of different types");
  by_type(out.dtype, [&]<class T>(T) {
    run_blocks(add_blocks<T>, Grid(ceil_div(out.numel(), kAddThreads), second_out ? 2 : 1), kAddThreads, 0,
               stream, p, out.as<T>(), second_out ? second_out.as<T>() : nullptr, out.numel());
  });
}

void cuda_launch(const ColumnSumArgs& a, const Tensor& scratch, CudaContext&, cudaStream_t stream) {
  const int64_t rows = a.dy.shape[0], cols = a.dy.shape[1];
  const RowBlocks blocks(rows, cols);
  float* partial = reinterpret_cast<float*>(scratch.data);
  by_type(a.dy.dtype, [&]<class T>(T) {
    const auto dy = head_rows_of<const T>(a.dy);
    run_sum_down<T>(dy.whole, dy.stride, rows, cols, partial, stream,
                    [&]<int width>(std::integral_constant<int, width>) { return ColumnOfDy<T, width>{dy}; });
  });
  add_partials({partial, blocks.blocks, blocks.padded, 0, a.accumulate}, a.db, {}, stream);
}

void cuda_launch(const SquareSumsArgs& p, const Tensor&, CudaContext&, cudaStream_t stream) {
  by_type(p.x.dtype, [&]<class T>(T) {
    run_blocks(sum_squares<T>, ceil_div(p.sums.numel(), kSquareWarps), kSquareWarps * 32, 0, stream,
               p.x.as<T>(), p.x.numel(), p.sums.as<double>());
  });
}

void cuda_launch(const CountNonfiniteArgs& p, const Tensor&, CudaContext& ctx, cudaStream_t stream) {
  switch (p.x.dtype) {
    case DType::f64:
      return count_as<unsigned long long>(p, 0x7ffull << 52, ctx, stream);
    case DType::f32:
      return count_as<uint32_t>(p, 0x7f800000, ctx, stream);
    case DType::bf16:
      return count_as<uint16_t>(p, 0x7f80, ctx, stream);
    default:
      require(p.x.dtype == DType::f16, "count_nonfinite of an integer type");
      return count_as<uint16_t>(p, 0x7c00, ctx, stream);
  }
}

}  // namespace trireme::cuda
