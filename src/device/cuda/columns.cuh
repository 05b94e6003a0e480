// Sums down the columns of a matrix of N rows, for norm.cu and sums.cu.
//
// The rows are cut into at most 64 blocks (cpu/partials.h's RowBlocks, a function of N alone). A thread block
// takes 16 pieces of neighbouring columns of one block of rows: 16 threads across, 16 threads down, each
// thread every 16th row. A piece is 16 bytes where all rows are aligned and C is a multiple of the piece,
// else one element. A thread issues the loads of F::kAtOnce rows before it uses the first, so that 16 to 32
// KiB a block are in flight. Then the 16 sums of a column are added in a fixed tree, and a second launch
// (add_partials) adds the blocks of rows in order. The order depends on N alone: equal bits every time, with
// and without alignment.
#pragma once
#include "device/cuda/partials.cuh"
#include "device/cuda/reduce.cuh"

namespace trireme::cuda {

constexpr int kPieces = 16;     // threads of a block across
constexpr int kRowStride = 16;  // threads of a block down = distance of a thread's rows
constexpr int kSumThreads = kPieces * kRowStride;

// `width` neighbouring elements as they are in memory: 16 bytes, or one element.
template <class T, int width>
struct Piece {
  T t[width];

  static __device__ __forceinline__ Piece load(const T* p) {
    Piece out;
    if constexpr (width == 1) {
      out.t[0] = *p;
    } else {
      static_assert(width * sizeof(T) == 16);
      union Both {
        Bytes16 bytes;
        Piece piece;
      } u;
      u.bytes = load16(p);
      out = u.piece;
    }
    return out;
  }
};

// One column of rows i, i + kRowStride, ... in `n` operands with equal numbers of heads. next() has no
// division: a row's token and head move by constants, and the head wraps at most once.
template <class T, int n>
class RowWalk {
 public:
  __device__ __forceinline__ RowWalk(const HeadRows<const T> (&rows)[n], int64_t first, int64_t column)
      : heads_(int(rows[0].heads)) {
    const int64_t token = heads_ == 1 ? first : first / heads_;
    head_ = int(first - token * heads_);
    head_step_ = kRowStride % heads_;
#pragma unroll
    for (int i = 0; i < n; i++) {
      const HeadRows<const T>& r = rows[i];
      at_[i] = r.data + token * r.stride + head_ * r.width + column;
      step_[i] = int(kRowStride / heads_ * r.stride + head_step_ * r.width);
      wrap_[i] = int(r.stride - heads_ * r.width);
    }
  }
  // at: the row's elements.
  __device__ __forceinline__ void next(const T* (&at)[n]) {
    head_ += head_step_;
    const bool wraps = head_ >= heads_;
    head_ -= wraps ? heads_ : 0;
#pragma unroll
    for (int i = 0; i < n; i++) {
      at[i] = at_[i];
      at_[i] += step_[i] + (wraps ? wrap_[i] : 0);
    }
  }

 private:
  const T* at_[n];
  int step_[n], wrap_[n];  // elements; run_sum_down holds them under 2^31
  int heads_, head_, head_step_;
};

// Writes partial[blockIdx.y][F::kSums][padded].
// F: kSums sums of kWidth columns, kAtOnce rows at once, Walk(f, row, column), whose next() loads a row
// (F::Row), and add(row, sums).
template <class F>
__global__ void __launch_bounds__(kSumThreads, 3)
    sum_down(F f, int64_t rows, int64_t cols, int64_t block_rows, int64_t padded, float* partial) {
  constexpr int width = F::kWidth, sums = F::kSums, at_once = F::kAtOnce, warps = kSumThreads / 32;
  __shared__ float of_warp[warps][sums * width][kPieces];
  const int across = int(threadIdx.x) % kPieces, down = int(threadIdx.x) / kPieces;
  const int64_t first_column = int64_t(blockIdx.x) * kPieces * width, c = first_column + across * width;
  const int64_t begin = int64_t(blockIdx.y) * block_rows,
                end = begin + block_rows < rows ? begin + block_rows : rows;
  float s[sums][width] = {};
  if (c < cols && begin + down < end) {
    int left = int((end - begin - down + kRowStride - 1) / kRowStride);  // rows of this thread
    typename F::Walk walk(f, begin + down, c);
    for (; left >= at_once; left -= at_once) {
      typename F::Row row[at_once];
#pragma unroll
      for (int k = 0; k < at_once; k++) row[k] = walk.next();
#pragma unroll
      for (int k = 0; k < at_once; k++) F::add(row[k], s);
    }
    for (; left > 0; left--) F::add(walk.next(), s);
  }
  // Lanes 0-15 and 16-31 of a warp are two rows of the same columns; then the warps, in order.
#pragma unroll
  for (int i = 0; i < sums; i++)
#pragma unroll
    for (int k = 0; k < width; k++) {
      const float both = s[i][k] + __shfl_xor_sync(kAllLanes, s[i][k], kPieces);
      if (threadIdx.x % 32 < kPieces) of_warp[threadIdx.x / 32][i * width + k][across] = both;
    }
  __syncthreads();
  for (int i = int(threadIdx.x); i < sums * width * kPieces; i += kSumThreads) {
    const int which = i / kPieces / width;
    const int64_t column = first_column + i % kPieces * width + i / kPieces % width;
    float total = 0;
#pragma unroll
    for (int w = 0; w < warps; w++) total += of_warp[w][i / kPieces][i % kPieces];
    if (column < cols) partial[(int64_t(blockIdx.y) * sums + which) * padded + column] = total;
  }
}

// make: a function of the width of a piece (an std::integral_constant) that returns the F of that width.
// stride: elements between rows, at most.
template <class T, class Make>
void run_sum_down(bool aligned, int64_t stride, int64_t rows, int64_t cols, float* partial,
                  cudaStream_t stream, const Make& make) {
  const RowBlocks blocks(rows, cols);
  require(stride < INT_MAX / kRowStride, "rows too far apart");
  auto run = [&]<int width>(std::integral_constant<int, width> w) {
    const auto f = make(w);
    run_blocks(sum_down<std::remove_const_t<decltype(f)>>,
               Grid(ceil_div(cols, kPieces * width), blocks.blocks), kSumThreads, 0, stream, f, rows, cols,
               blocks.block_rows, blocks.padded, partial);
  };
  constexpr int wide = 16 / int(sizeof(T));
  if (aligned && cols % wide == 0)
    run(std::integral_constant<int, wide>());
  else
    run(std::integral_constant<int, 1>());
}

}  // namespace trireme::cuda
