// Softmax cross-entropy fused with its gradient, a block a row of logits [N, V], in place; whole, and of
// columns that are divided over ranks (what a rank says of its columns; loss and gradient from what all
// said).
//
// Passes over a row: the maximum m; Z = the sum of exp(x - m), a fixed tree in f32; then exp(x - m) *
// grad_scale / Z, less grad_scale at the target. Exponentials are drawn twice: nothing of size [N, V] is kept
// in f32. loss = log Z - (x[target] - m), finished in double; ranks are merged in double, in their order, so
// every rank has the same loss. Traffic: logits read twice (or three times, where a row leaves the cache) and
// written once; some 10 FLOPs a column.
#include "device/cuda/indices.h"
#include "device/cuda/reduce.cuh"
#include "device/cuda/values.cuh"

namespace trireme::cuda {
namespace {

constexpr int kRowThreads = 512;

// The largest of x[0, vocab); every thread gets it.
template <class T>
__device__ __forceinline__ float row_max(const Rows<T>& x, int64_t row, int64_t vocab) {
  float m = -HUGE_VALF;
  for (int64_t c = int64_t(threadIdx.x) * kChunk; c < vocab; c += int64_t(blockDim.x) * kChunk) {
    const int n = int(vocab - c < kChunk ? vocab - c : kChunk);
    float v[kChunk];
    x.load(row, c, n, v);
#pragma unroll
    for (int i = 0; i < kChunk; i++)
      if (i < n) m = Largest()(m, v[i]);
  }
  return block_max(m);
}
template <class T>
__device__ __forceinline__ float row_sum_exp(const Rows<T>& x, int64_t row, float m, int64_t vocab) {
  float z = 0;
  for (int64_t c = int64_t(threadIdx.x) * kChunk; c < vocab; c += int64_t(blockDim.x) * kChunk) {
    const int n = int(vocab - c < kChunk ? vocab - c : kChunk);
    float v[kChunk];
    x.load(row, c, n, v);
#pragma unroll
    for (int i = 0; i < kChunk; i++)
      if (i < n) z += expf(v[i] - m);
  }
  return block_sum(z);
}
// x[c] = exp(x[c] - m) * factor, `own` at column `target`, 0 from `used` on to `width`.
template <class T>
__device__ __forceinline__ void to_gradient(const Rows<T>& x, int64_t row, float m, float factor,
                                            int64_t target, float own, int64_t used, int64_t width) {
  for (int64_t c = int64_t(threadIdx.x) * kChunk; c < width; c += int64_t(blockDim.x) * kChunk) {
    const int n = int(width - c < kChunk ? width - c : kChunk);
    float v[kChunk];
    x.load(row, c, n, v);
#pragma unroll
    for (int i = 0; i < kChunk; i++)
      v[i] = c + i >= used ? 0.0f : c + i == target ? own : expf(v[i] - m) * factor;
    x.store(v, row, c, n);
  }
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
template <class T>
__global__ void __launch_bounds__(kRowThreads) cross_entropy_rows(WholeRows<T> a) {
  const int64_t row = blockIdx.x, target = a.targets[row];
  if (target < 0 || target >= a.vocab) {  // ignored; one that is out of range is told at the next sync
    if (threadIdx.x == 0) a.loss[row] = 0;
    if (a.backward) to_gradient(a.logits, row, 0, 0, -1, 0, 0, a.width);
    return;
  }
  const float at_target = widen(a.logits.at(row)[target]);
  const float m = row_max(a.logits, row, a.vocab);
  const float z = row_sum_exp(a.logits, row, m, a.vocab);
  if (threadIdx.x == 0) a.loss[row] = float(log(double(z)) - (double(at_target) - double(m)));
  if (!a.backward) return;
  const float factor = a.grad_scale / z, own = expf(at_target - m) * factor - a.grad_scale;
  to_gradient(a.logits, row, m, factor, target, own, a.vocab, a.width);
}

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    stats_rows(Rows<const T> logits, const int32_t* targets, float* stats, int64_t rows, int64_t first,
               int64_t vocab) {
  const int64_t row = blockIdx.x, target = targets[row] - first;
  const float m = row_max(logits, row, vocab);
  const float z = row_sum_exp(logits, row, m, vocab);
  if (threadIdx.x != 0) return;
  stats[row] = m;
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
  to_gradient(a.logits, row, float(largest), float(factor), target, own, ignored ? 0 : a.vocab, a.width);
}

}  // namespace

void cuda_launch(const CrossEntropyArgs& a, const Tensor&, CudaContext& ctx, cudaStream_t stream) {
  check_indices(a.targets, -1, a.vocab, "cross_entropy: target", "targets are -1 (ignored) or ids, in", ctx,
                stream);
  const int64_t width = a.logits.shape[1];
  by_type(a.logits.dtype, [&]<class T>(T) {
    run_blocks(cross_entropy_rows<T>, a.logits.shape[0], row_threads(width, kRowThreads), 0, stream,
               WholeRows<T>{rows_of<T>(a.logits), a.targets.as<int32_t>(), a.loss.as<float>(), a.vocab, width,
                            a.grad_scale, a.backward});
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
