// Softmax cross-entropy fused with its gradient, a block a row of logits [N, V], in place; whole, and of
// columns that are divided over ranks (what a rank says of its columns; loss and gradient from what all
// said).
//
// Two passes over a row. The first finds the maximum m and Z = the sum of exp(x - m) at once (Milakov &
// Gimelshein 2018): each thread scales its sum when it meets a larger element. The threads' sums are added as
// a fixed tree in f32. The second pass writes exp(x - m) * grad_scale / Z, less grad_scale at the target.
// Exponentials are drawn twice: nothing of size [N, V] is kept in f32. loss = log Z - (x[target] - m),
// finished in double; ranks are merged in double, in their order, so every rank has the same loss.
//
// Traffic: logits are read once or twice and written once. If two rows of 16 bits fit the shared memory of a
// multiprocessor (up to 57,000 columns on an H100), the first pass keeps the row there. In the second pass
// each thread reads what it wrote. Loads of four chunks are issued before the first is used. Some 12
// instructions a column.
#include <cfloat>

#include "device/cuda/indices.h"
#include "device/cuda/numbers.cuh"
#include "device/cuda/reduce.cuh"

namespace trireme::cuda {
namespace {

constexpr int kRowThreads = 512;

// e^x for x <= 0. Of 16 bits by the unit for powers of two: a relative error of 2^-22 + 1e-7 |x|, a 400th of
// what rounding to f16 costs where e^x > 1e-4, and little of the sum elsewhere.
template <class T>
__device__ __forceinline__ float exp_for(float x) {
  if constexpr (sizeof(T) == 2)
    return exp2_of(x * 1.4426950408889634f);
  else
    return expf(x);
}

// The largest of some elements, and the sum of exp(x - largest). Not-a-number and infinities make sum
// not-a-number.
struct SoftmaxSum {
  float largest = -FLT_MAX, sum = 0;

  template <class T>
  __device__ __forceinline__ void scale_to(float other) {
    sum *= exp_for<T>(largest - other);
    largest = other;
  }
  template <class T>
  __device__ __forceinline__ void add(const float (&v)[kChunk]) {
    float top = v[0];
#pragma unroll
    for (int i = 1; i < kChunk; i++) top = fmaxf(top, v[i]);
    if (top > largest) scale_to<T>(top);
    float e[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; i++) e[i] = exp_for<T>(v[i] - largest);
    sum += ((e[0] + e[1]) + (e[2] + e[3])) + ((e[4] + e[5]) + (e[6] + e[7]));
  }
};

// Elements [0, cols) of a row, whose chunk c is of thread c % blockDim.x. f(column, n, raw): n < 8 at the
// row's end alone, what is beyond is 0. Four chunks are loaded before f has the first.
template <class T, class F>
__device__ __forceinline__ void each_chunk_of(const Rows<T>& x, int64_t row, int64_t cols, const F& f) {
  constexpr int at_once = 4;
  using Element = std::remove_const_t<T>;
  const T* begin = x.at(row);
  const int step = int(blockDim.x), full = x.whole ? int(cols / kChunk) : 0;
  int chunk = int(threadIdx.x);
  for (; chunk + (at_once - 1) * step < full; chunk += at_once * step) {
    Element raw[at_once][kChunk];
#pragma unroll
    for (int k = 0; k < at_once; k++) load8(begin + int64_t(chunk + k * step) * kChunk, true, kChunk, raw[k]);
#pragma unroll
    for (int k = 0; k < at_once; k++) f(int64_t(chunk + k * step) * kChunk, kChunk, raw[k]);
  }
  for (int64_t c = int64_t(chunk) * kChunk; c < cols; c += int64_t(step) * kChunk) {
    Element raw[kChunk];
    const int n = int(cols - c < kChunk ? cols - c : kChunk);
    load8(begin + c, x.whole, n, raw);
    f(c, n, raw);
  }
}

// The sum over x[0, vocab), for every thread. keep: chunks go to dynamic shared memory too, 16 bytes each.
template <bool keep, class T>
__device__ __forceinline__ SoftmaxSum softmax_sum(const Rows<T>& x, int64_t row, int64_t vocab) {
  using Element = std::remove_const_t<T>;
  SoftmaxSum s;
  each_chunk_of(x, row, vocab, [&](int64_t c, int n, const Element(&raw)[kChunk]) {
    if constexpr (keep) store8(raw, dynamic_shared<Element>() + c, true, kChunk);
    float v[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; i++) v[i] = i < n ? widen(raw[i]) : -HUGE_VALF;
    s.add<T>(v);
  });
  s.scale_to<T>(block_max(s.largest));
  s.sum = block_sum(s.sum);
  return s;
}

// x[c] = exp(x[c] - m) * factor, `own` at column `target`, 0 from `used` on to `width`. kept: as softmax_sum
// left them.
template <bool kept, class T>
__device__ __forceinline__ void to_gradient(const Rows<T>& x, int64_t row, float m, float factor,
                                            int64_t target, float own, int64_t used, int64_t width) {
  auto put = [&](int64_t c, int n, const T(&raw)[kChunk]) {
    float v[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; i++) v[i] = i < n ? exp_for<T>(widen(raw[i]) - m) * factor : 0.0f;
    if (target >= c && target < c + kChunk) {
#pragma unroll
      for (int i = 0; i < kChunk; i++)
        if (c + i == target) v[i] = own;
    }
    x.store(v, row, c, int(width - c < kChunk ? width - c : kChunk));
  };
  if constexpr (kept) {
    for (int64_t c = int64_t(threadIdx.x) * kChunk; c < used; c += int64_t(blockDim.x) * kChunk) {
      T raw[kChunk];
      load8(dynamic_shared<T>() + c, true, kChunk, raw);
      put(c, int(used - c < kChunk ? used - c : kChunk), raw);
    }
  } else {
    each_chunk_of(x, row, used, put);
  }
  const float zeros[kChunk] = {};
  for (int64_t c = (used + kChunk - 1) / kChunk * kChunk + int64_t(threadIdx.x) * kChunk; c < width;
       c += int64_t(blockDim.x) * kChunk)
    x.store(zeros, row, c, int(width - c < kChunk ? width - c : kChunk));
}

template <class T>
struct WholeRows {
  Rows<T> logits;
  const int32_t* targets;
  float* loss;
  int64_t vocab, width;
  float grad_scale;
  bool backward;
};
template <bool keep, class T>
__global__ void __launch_bounds__(kRowThreads, 2) cross_entropy_rows(WholeRows<T> a) {
  const int64_t row = blockIdx.x, target = a.targets[row];
  if (target < 0 || target >= a.vocab) {  // ignored; one that is out of range is told at the next sync
    if (threadIdx.x == 0) a.loss[row] = 0;
    if (a.backward) to_gradient<false>(a.logits, row, 0, 0, -1, 0, 0, a.width);
    return;
  }
  const float at_target = widen(a.logits.at(row)[target]);
  const auto [m, z] = softmax_sum<keep>(a.logits, row, a.vocab);
  if (threadIdx.x == 0) a.loss[row] = float(log(double(z)) - (double(at_target) - double(m)));
  if (!a.backward) return;
  const float factor = a.grad_scale / z, own = expf(at_target - m) * factor - a.grad_scale;
  to_gradient<keep>(a.logits, row, m, factor, target, own, a.vocab, a.width);
}

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    stats_rows(Rows<const T> logits, const int32_t* targets, float* stats, int64_t rows, int64_t first,
               int64_t vocab) {
  const int64_t row = blockIdx.x, target = targets[row] - first;
  const auto [m, z] = softmax_sum<false>(logits, row, vocab);
  if (threadIdx.x != 0) return;
  stats[row] = m == -FLT_MAX ? -HUGE_VALF : m;  // no column, or none above -inf
  stats[rows + row] = z;
  stats[2 * rows + row] =
      targets[row] >= 0 && target >= 0 && target < vocab ? widen(logits.at(row)[target]) : 0.0f;
}

template <class T>
struct SplitRows {
  Rows<T> logits;
  const int32_t* targets;
  const float* stats;
  float* loss;
  int64_t ranks, rows, first, vocab, width;
  float grad_scale;
  bool backward;
};
template <class T>
__global__ void __launch_bounds__(kRowThreads) split_cross_entropy_rows(SplitRows<T> a) {
  const int64_t row = blockIdx.x;
  auto of = [&](int64_t rank, int64_t what) { return double(a.stats[(rank * 3 + what) * a.rows + row]); };
  double largest = of(0, 0), sum = 0, at_target = 0;
  for (int64_t r = 1; r < a.ranks; r++) largest = of(r, 0) > largest ? of(r, 0) : largest;
  for (int64_t r = 0; r < a.ranks; r++) {
    sum += of(r, 1) * exp(of(r, 0) - largest);
    at_target += of(r, 2);
  }
  const bool ignored = a.targets[row] < 0;
  if (threadIdx.x == 0) a.loss[row] = ignored ? 0.0f : float(log(sum) - (at_target - largest));
  if (!a.backward) return;
  const int64_t target = a.targets[row] - a.first;
  const double factor = double(a.grad_scale) / sum;
  float own = 0;
  if (!ignored && target >= 0 && target < a.vocab)
    own = float(exp(double(widen(a.logits.at(row)[target])) - largest) * factor - double(a.grad_scale));
  __syncthreads();  // all have read the target's logit before it is overwritten
  to_gradient<false>(a.logits, row, float(largest), float(factor), target, own, ignored ? 0 : a.vocab,
                     a.width);
}

// Whether two blocks with `bytes` of dynamic shared memory each share a multiprocessor; CUDA takes 1 KiB per
// block.
bool fits_twice(int64_t bytes, const CudaContext& ctx) {
  constexpr int64_t kOwn = 1024 + 2 * 32 * sizeof(float);  // and what block_reduce takes
  return 2 * (bytes + kOwn) <= ctx.shared_bytes;
}

}  // namespace

void cuda_launch(const CrossEntropyArgs& a, const Tensor&, CudaContext& ctx, cudaStream_t stream) {
  check_indices(a.targets, -1, a.vocab, "cross_entropy: target", "targets are -1 (ignored) or ids, in", ctx,
                stream);
  const int64_t width = a.logits.shape[1];
  by_type(a.logits.dtype, [&]<class T>(T) {
    const WholeRows<T> rows{rows_of<T>(a.logits),
                            a.targets.as<int32_t>(),
                            a.loss.as<float>(),
                            a.vocab,
                            width,
                            a.grad_scale,
                            a.backward};
    const int64_t kept = round_up(a.vocab, kChunk) * int64_t(sizeof(T));
    const int threads = row_threads(width, kRowThreads);
    if constexpr (sizeof(T) == 2) {
      if (a.backward && fits_twice(kept, ctx)) {
        allow_shared(cross_entropy_rows<true, T>, kept);
        run_blocks(cross_entropy_rows<true, T>, a.logits.shape[0], threads, kept, stream, rows);
        return;
      }
    }
    run_blocks(cross_entropy_rows<false, T>, a.logits.shape[0], threads, 0, stream, rows);
  });
}
void cuda_launch(const SoftmaxStatsArgs& a, const Tensor&, CudaContext&, cudaStream_t stream) {
  by_type(a.logits.dtype, [&]<class T>(T) {
    run_blocks(stats_rows<T>, a.logits.shape[0], row_threads(a.vocab, kRowThreads), 0, stream,
               rows_of<const T>(a.logits), a.targets.as<int32_t>(), a.stats.as<float>(), a.logits.shape[0],
               a.first, a.vocab);
  });
}
void cuda_launch(const SplitCrossEntropyArgs& a, const Tensor&, CudaContext&, cudaStream_t stream) {
  const int64_t rows = a.logits.shape[0], width = a.logits.shape[1];
  by_type(a.logits.dtype, [&]<class T>(T) {
    run_blocks(
        split_cross_entropy_rows<T>, rows, row_threads(width, kRowThreads), 0, stream,
        SplitRows<T>{rows_of<T>(a.logits), a.targets.as<int32_t>(), a.stats.as<float>(), a.loss.as<float>(),
                     a.stats.shape[0], rows, a.first, a.vocab, width, a.grad_scale, a.backward});
  });
}

}  // namespace trireme::cuda
