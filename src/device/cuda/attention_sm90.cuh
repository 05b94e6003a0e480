// What attention's kernels for sm_90a share: which problems they take, registers as operands.
#pragma once
#include "device/cuda/attention_mma.cuh"
#include "device/cuda/attention_sm90.h"
#include "device/cuda/warpgroup_mma.cuh"

namespace trireme::cuda {

// Sums as left operands of the next product, rounded.
template <class T, int kSteps>
__device__ __forceinline__ void round_pairs(uint32_t (&pairs)[kSteps][4], const float (&s)[2 * kSteps][4]) {
#pragma unroll
  for (int i = 0; i < kSteps; i++) {
    pairs[i][0] = pair_of<T>(s[2 * i][0], s[2 * i][1]);
    pairs[i][1] = pair_of<T>(s[2 * i][2], s[2 * i][3]);
    pairs[i][2] = pair_of<T>(s[2 * i + 1][0], s[2 * i + 1][1]);
    pairs[i][3] = pair_of<T>(s[2 * i + 1][2], s[2 * i + 1][3]);
  }
}

template <class T>
TileSource<T> tiles_of(const AttentionRows<const T>& t, int batch, int rows, int heads, int columns) {
  return {t.data, t.batch, t.row, t.head, batch, rows, heads, columns};
}

// Strides that a tensor map can say.
inline bool can_be_mapped(const Tensor& t) {
  bool ok = in_chunks(t);
  for (int d = 0; d < 3; d++)
    ok &= t.shape[d] <= 1 || (t.stride[size_t(d)] > 0 && t.stride[size_t(d)] < 1ll << 38);
  return ok;
}

// What a block of keys goes through in the backward pass, in order: f(h, q0, rows, blocks) for all heads of
// kv and steps of R queries that see some of its keys; blocks: all those that they see. least(q0, rows): the
// first key that one of the rows sees.
template <int R, int kKeys, class Problem, class Least, class F>
__device__ __forceinline__ void each_step(const Problem& p, int n, int kv, const Least& least, const F& f) {
  const int group = p.heads / p.kv_heads;
  for (int h = kv * group; h < (kv + 1) * group; h++)
    for (int q0 = p.first_row(n * kKeys) / R * R; q0 < p.seq; q0 += R) {
      const int rows = p.seq - q0 < R ? p.seq - q0 : R;
      const sm90::KeyBlocks blocks = sm90::key_blocks(least(q0, rows), p.end_of(q0 + rows - 1), kKeys);
      if (blocks.has(n)) f(h, q0, rows, blocks);
    }
}

template <class Args>
bool wants_sm90(const CudaContext& ctx, const Args& a) {
  return ctx.sm90_attention && ctx.major == 9 && a.scale > 0 && size_of(a.q.dtype) == 2 && widest(a) <= 256 &&
         a.k.shape[1] > 0;
}

}  // namespace trireme::cuda
