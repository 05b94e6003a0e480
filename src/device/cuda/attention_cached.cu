// attention_cached: one query row against the keys and values of a cache, positions [0, p] of its text.
//
//   o = softmax(scale q K^T) V;  q, o [B,S,H,D or DV], k [B,Cap,KV,D], v [B,Cap,KV,DV], outer strides free.
//
// Block (row of a text, head): 4 warps take groups of 32 keys in turn, a lane one key's score, online softmax
// in f32; the warps' parts are merged in their order. Probabilities stay f32, one rounding at the store. All
// sums are chains or trees of a fixed order: a row's bits depend on its operands alone. Bound by memory: the
// cache's (D + DV) elements a position are read once a head (heads that share them, from the L2 cache).
// 2 (D + DV) FLOPs a position and head.
#include "device/cuda/indices.h"
#include "device/cuda/numbers.cuh"
#include "device/cuda/reduce.cuh"

namespace trireme::cuda {
namespace {

constexpr int kCachedThreads = 128, kWarps = kCachedThreads / 32;

template <class T>
struct CachedAttention {
  const T *q = nullptr, *k = nullptr, *v = nullptr;
  T* o = nullptr;
  const int32_t* positions = nullptr;
  int64_t q_stride[3], k_stride[3], v_stride[3], o_stride[3];
  int seq = 0, capacity = 0, heads = 0, kv_heads = 0, dim = 0, v_dim = 0;
  float scale = 1;
};

// Floats of shared memory: q, and of each warp its part of o and 32 probabilities.
int64_t cached_tile(int64_t dim, int64_t v_dim) {
  return dim + kWarps * (v_dim + 32);
}

template <class T>
__global__ void __launch_bounds__(kCachedThreads) attention_cached(CachedAttention<T> p) {
  __shared__ float most_of[kWarps], sum_of[kWarps];
  const int h = int(blockIdx.y), kv = h / (p.heads / p.kv_heads), warp = int(threadIdx.x) / 32,
            lane = int(threadIdx.x) % 32;
  const int64_t b = blockIdx.x / unsigned(p.seq), s = blockIdx.x % unsigned(p.seq);
  const int position = p.positions[blockIdx.x];
  const int keys = position < 0 || position >= p.capacity ? 0 : position + 1;
  float* q = dynamic_shared<float>();
  float* o = q + p.dim + warp * (p.v_dim + 32);
  float* prob = o + p.v_dim;
  const T* row = p.q + b * p.q_stride[0] + s * p.q_stride[1] + h * p.q_stride[2];
  for (int d = int(threadIdx.x); d < p.dim; d += kCachedThreads) q[d] = widen(row[d]) * p.scale;
  for (int d = lane; d < p.v_dim; d += 32) o[d] = 0;
  __syncthreads();

  float most = -1e30f, sum = 0;  // below any score; a masked one, -inf, differs from it by an infinity
  const T* k = p.k + b * p.k_stride[0] + kv * p.k_stride[2];
  const T* v = p.v + b * p.v_stride[0] + kv * p.v_stride[2];
  for (int first = 32 * warp; first < keys; first += 32 * kWarps) {
    float score = -HUGE_VALF;
    if (first + lane < keys) {
      const T* key = k + (first + lane) * p.k_stride[1];
      score = 0;
      for (int d = 0; d < p.dim; d++) score = fmaf(q[d], widen(key[d]), score);
    }
    const float now = fmaxf(most, warp_max(score)), keep = expf(most - now), x = expf(score - now);
    sum = sum * keep + warp_sum(x);
    most = now;
    prob[lane] = x;
    __syncwarp();
    const int n = keys - first < 32 ? keys - first : 32;
    for (int d = lane; d < p.v_dim; d += 32) {
      float to = o[d] * keep;
      for (int j = 0; j < n; j++) to = fmaf(prob[j], widen(v[(first + j) * p.v_stride[1] + d]), to);
      o[d] = to;
    }
    __syncwarp();
  }
  if (lane == 0) most_of[warp] = most, sum_of[warp] = sum;
  __syncthreads();
  float all = most_of[0], total = 0, share[kWarps];
  for (int w = 1; w < kWarps; w++) all = fmaxf(all, most_of[w]);
  for (int w = 0; w < kWarps; w++) share[w] = expf(most_of[w] - all), total += sum_of[w] * share[w];
  const float inverse = total > 0 ? 1 / total : 0.0f;
  T* out = p.o + b * p.o_stride[0] + s * p.o_stride[1] + h * p.o_stride[2];
  for (int d = int(threadIdx.x); d < p.v_dim; d += kCachedThreads) {
    float x = 0;
    for (int w = 0; w < kWarps; w++) x = fmaf(share[w], q[p.dim + w * (p.v_dim + 32) + d], x);
    out[d] = narrow<T>(x * inverse);
  }
}

template <class T>
void run_cached(const CachedAttentionArgs& a, cudaStream_t stream) {
  CachedAttention<T> p;
  p.q = a.q.as<T>(), p.k = a.k.as<T>(), p.v = a.v.as<T>(), p.o = a.o.as<T>();
  p.positions = a.positions.as<int32_t>();
  for (size_t d = 0; d < 3; d++)
    p.q_stride[d] = a.q.stride[d], p.k_stride[d] = a.k.stride[d], p.v_stride[d] = a.v.stride[d],
    p.o_stride[d] = a.o.stride[d];
  p.seq = int(a.q.shape[1]), p.capacity = int(a.k.shape[1]);
  p.heads = int(a.q.shape[2]), p.kv_heads = int(a.k.shape[2]);
  p.dim = int(a.q.shape[3]), p.v_dim = int(a.v.shape[3]), p.scale = a.scale;
  const int64_t bytes = cached_tile(p.dim, p.v_dim) * int64_t(sizeof(float));
  if (bytes > 48 << 10)
    bad_request("attention_cached: heads of {} and {} elements are too wide for its CUDA kernel", p.dim,
                p.v_dim);
  run_blocks(attention_cached<T>, Grid(a.q.shape[0] * p.seq, p.heads), kCachedThreads, bytes, stream, p);
}

}  // namespace

void cuda_launch(const CachedAttentionArgs& a, const Tensor&, CudaContext& ctx, cudaStream_t stream) {
  if (a.o.numel() == 0) return;
  check_indices(a.positions, -1, a.k.shape[1], "attention_cached: position", "the cache has positions", ctx,
                stream);
  by_type(a.q.dtype, [&](auto type) { run_cached<decltype(type)>(a, stream); });
}

}  // namespace trireme::cuda
