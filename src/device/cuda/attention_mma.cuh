// FlashAttention-2 (2307.08691) on tensor cores (warp_mma.cuh: sm_80 and up), bf16 and f16, forward and
// backward: the maths of attention_simt.cuh.
//
// Tiles of q, k, v and dO lie in shared memory as they are in memory, rows padded by 16 bytes (no bank
// conflict), columns beyond a head's zero. Scores and probabilities never leave registers: the sums of one
// product are, rounded to T, the left operand of the next. Sums f32, exponentials in base 2.
//
//   forward   block: 64 kM queries, a warp 16 kM of them; K of the next block of keys is copied while P V is
//             computed, V while Q K^T is. 4 D FLOPs a pair of query and key.
//   dK, dV    block: 64 keys, a warp 16 of them, all heads that share them in order; S^T = K Q^T,
//             dP^T = V dO^T, dV += P^T dO, dK += dS^T Q. 8 D FLOPs a pair. kOut < D: the columns are dealt to
//             D / kOut blocks, each of which computes all scores.
//   dQ        block: 64 queries; S, dP, dQ += dS K. 6 D FLOPs a pair: dQ in a pass of its own is what
//             determinism without atomics costs (14 D in all, not 10 D).
//
// Every sum is one chain in ascending order of keys (queries), 16 at a time, rows' sums of P over the 4 lanes
// of a row by a fixed tree: the same bits every time.
#pragma once
#include "device/cuda/attention_problem.cuh"
#include "device/cuda/attention_widths.h"
#include "device/cuda/warp_mma.cuh"

namespace trireme::cuda {

inline constexpr int kMmaThreads = 128;  // four warps
inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

template <int D>
inline constexpr int kTileRow = D + 8;  // elements of a row in shared memory

// Starts to copy n rows from `row` on into r rows of D columns; what is not there becomes 0.
template <class T, int D>
__device__ __forceinline__ void copy_tile(T* to, const AttentionRows<const T>& from, int b, int row, int h,
                                          int n, int r, int columns) {
  constexpr int per_row = D / 8;
#pragma unroll 1  // addresses of several rows at once spilled at 128 columns
  for (int i = int(threadIdx.x); i < r * per_row; i += kMmaThreads) {
    const int y = i / per_row, x = i % per_row * 8;
    const bool there = y < n && x < columns;
    copy16(to + y * kTileRow<D> + x, from.at(b, row + (there ? y : 0), h) + (there ? x : 0), there);
  }
}

// Left operand: rows [row, row + 16), columns [column, column + 16) of a tile.
template <class T, int D>
__device__ __forceinline__ void load_left(uint32_t (&a)[4], const T* tile, int row, int column) {
  const int lane = int(threadIdx.x) % 32;
  load_matrices(a, tile + (row + lane % 16) * kTileRow<D> + column + lane / 16 * 8);
}
// Right operands of two tiles of 8 columns: their columns are rows [row, row + 16) of the tile, the summed
// dim its columns [column, column + 16). b[0], b[1]: of the first, b[2], b[3]: of the second.
template <class T, int D>
__device__ __forceinline__ void load_right_rows(uint32_t (&b)[4], const T* tile, int row, int column) {
  const int lane = int(threadIdx.x) % 32;
  load_matrices(b, tile + (row + lane % 8 + lane / 16 * 8) * kTileRow<D> + column + lane / 8 % 2 * 8);
}
// The same where the summed dim is the tile's rows [row, row + 16), the columns [column, column + 16).
template <class T, int D>
__device__ __forceinline__ void load_right_columns(uint32_t (&b)[4], const T* tile, int row, int column) {
  const int lane = int(threadIdx.x) % 32;
  load_transposed(b, tile + (row + lane % 16) * kTileRow<D> + column + lane / 16 * 8);
}

// c[kM][n-tiles] = left rows [row, row + 16 kM) . right rows [0, 8 kTiles)^T over kColumns of D columns.
template <class T, int D, int kM, int kTiles, int kColumns = D>
__device__ __forceinline__ void scores_of(float (&c)[kM][kTiles][4], const T* left, int row, const T* right) {
#pragma unroll
  for (int m = 0; m < kM; m++)
#pragma unroll
    for (int n = 0; n < kTiles; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) c[m][n][e] = 0;
#pragma unroll 4  // more only costs the assembler's time
  for (int d = 0; d < kColumns; d += 16) {
    uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; m++) load_left<T, D>(a[m], left, row + 16 * m, d);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t b[4];
      load_right_rows<T, D>(b, right, 8 * n, d);
#pragma unroll
      for (int m = 0; m < kM; m++) {
        mma(c[m][n], a[m], b[0], b[1], T());
        mma(c[m][n + 1], a[m], b[2], b[3], T());
      }
    }
  }
}
// Sums of a product, rounded, as left operands of 8 kTiles / 16 steps of the next.
template <class T, int kM, int kTiles>
__device__ __forceinline__ void pairs_of(uint32_t (&a)[kM][kTiles / 2][4], const float (&x)[kM][kTiles][4]) {
#pragma unroll
  for (int m = 0; m < kM; m++)
#pragma unroll
    for (int n = 0; n < kTiles; n++)
#pragma unroll
      for (int e = 0; e < 2; e++) a[m][n / 2][n % 2 * 2 + e] = pair_of<T>(x[m][n][2 * e], x[m][n][2 * e + 1]);
}
// c[kM][kOut / 8] += a . right columns [first, first + kOut) over 16 kSteps rows of it.
template <class T, int D, int kM, int kSteps, int kOut>
__device__ __forceinline__ void add_pairs(float (&c)[kM][kOut / 8][4], const uint32_t (&a)[kM][kSteps][4],
                                          const T* right, int first) {
#pragma unroll
  for (int n = 0; n < kSteps; n++)
#pragma unroll
    for (int d = 0; d < kOut / 8; d += 2) {
      uint32_t b[4];
      load_right_columns<T, D>(b, right, 16 * n, first + 8 * d);
#pragma unroll
      for (int m = 0; m < kM; m++) {
        mma(c[m][d], a[m][n], b[0], b[1], T());
        mma(c[m][d + 1], a[m][n], b[2], b[3], T());
      }
    }
}
// The same of sums of the product before.
template <class T, int D, int kM, int kTiles, int kOut>
__device__ __forceinline__ void add_product(float (&c)[kM][kOut / 8][4], const float (&x)[kM][kTiles][4],
                                            const T* right, int first) {
  uint32_t a[kM][kTiles / 2][4];
  pairs_of<T>(a, x);
  add_pairs<T, D, kM, kTiles / 2, kOut>(c, a, right, first);
}
template <int kA, int kB>
__device__ __forceinline__ void clear(float (&c)[kA][kB][4]) {
#pragma unroll
  for (int a = 0; a < kA; a++)
#pragma unroll
    for (int b = 0; b < kB; b++)
#pragma unroll
      for (int e = 0; e < 4; e++) c[a][b][e] = 0;
}

// Over the four lanes of a row.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Keys [begin, begin + span) are seen. Masks are a pass of their own, of blocks that are not seen whole: with
// them, and with exp2f, a score took 17 instructions and a branch, where 5 do.
struct SeenKeys {
  int begin = 0;
  unsigned span = 0;

  SeenKeys() = default;
  __device__ __forceinline__ SeenKeys(int from, int end) : begin(from), span(end > from ? end - from : 0) {}
  __device__ __forceinline__ void hide(float& score, int key) const {
    score = unsigned(key - begin) < span ? score : -HUGE_VALF;
  }
};

// Scores of one row to probabilities 2^(scale s - m'), m' = max(m, scale max s), scale > 0; returns 2^(m -
// m'), what sums of before are multiplied with. most, sum: m and this lane's share of l.
template <int kTiles>
__device__ __forceinline__ float probabilities_of(float (&s)[kTiles][4], int half, float scale, float& most,
                                                  float& sum) {
  float largest = s[0][2 * half];
#pragma unroll
  for (int n = 0; n < kTiles; n++)
#pragma unroll
    for (int e = 0; e < 2; e++) largest = fmaxf(largest, s[n][2 * half + e]);
  largest = fmaxf(most, quad_max(largest) * scale);
  const float keep = exp2_of(most - largest);
  float added[2] = {0, 0};
#pragma unroll
  for (int n = 0; n < kTiles; n++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      float& x = s[n][2 * half + e];
      x = exp2_of(fmaf(x, scale, -largest));
      added[e] += x;
    }
  sum = fmaf(sum, keep, added[0] + added[1]);
  most = largest;
  return keep;
}

// Bit i: keeps(i), for i < n <= 32. Draws of dropout in a loop that stays one: unrolled with the scores they
// were most of the code and of the compiler's time.
template <int n, class F>
__device__ __forceinline__ uint32_t bits_of(const F& keeps) {
  static_assert(n <= 32);
  uint32_t bits = 0;
#pragma unroll 1
  for (int i = 0; i < n; i++) bits |= uint32_t(keeps(i)) << i;
  return bits;
}

// Two rows of sums (g and g + 8) of columns [0, 8 kTiles), times a factor each, to rows `row` and row + 8.
template <class T, int kTiles>
__device__ __forceinline__ void store_sums(const AttentionSink<T, float>& out, const float (&c)[kTiles][4],
                                           const float (&factor)[2], int b, int row, int h, int rows,
                                           int first, int columns) {
  const int t = int(threadIdx.x) % 4;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    if (row + 8 * half >= rows) continue;
    const int64_t at = out.at(b, row + 8 * half, h);
#pragma unroll
    for (int n = 0; n < kTiles; n++) {
      const int column = first + 8 * n + 2 * t;
      if (column < columns)
        out.put_pair(at + column, c[n][2 * half] * factor[half], c[n][2 * half + 1] * factor[half]);
    }
  }
}

// ---- forward ----

template <int D>
inline constexpr int kForwardKeys = D > 128 ? 32 : 64;
template <int D, int kM>
inline constexpr int64_t kForwardBytes = (64 * kM + 2 * kForwardKeys<D>)*kTileRow<D>* int64_t(2);

// Block (query block, head, sequence). Late query blocks, which see the most keys, come first.
// Draws of dropout have kernels of their own: beside 128 columns there are too few registers for them.
template <class T, int D, int DV, int kM, bool kDrops>
__global__ void __launch_bounds__(kMmaThreads) attention_forward_mma(AttentionProblem<T, float> p) {
  constexpr int kRows = 64 * kM, kKeys = kForwardKeys<D>, kTiles = kKeys / 8;
  const int b = int(blockIdx.z), h = int(blockIdx.y), kv = p.kv_head(h);
  const int q0 = int(gridDim.x - 1 - blockIdx.x) * kRows, rows = p.seq - q0 < kRows ? p.seq - q0 : kRows;
  const int warp_row = int(threadIdx.x) / 32 * 16 * kM, g = int(threadIdx.x) % 32 / 4,
            t = int(threadIdx.x) % 4;
  T* q = dynamic_shared<T>();
  T* k = q + kRows * kTileRow<D>;
  T* v = k + kKeys * kTileRow<D>;
  const float scale = p.scale * kLog2E;

  const int from = p.begin_of_rows(b, q0, rows) / kKeys * kKeys, last = p.end_of(q0 + rows - 1);
  copy_tile<T, D>(q, p.q, b, q0, h, rows, kRows, p.dim);
  if (from < last) copy_tile<T, D>(k, p.k, b, from, kv, p.keys - from, kKeys, p.dim);
  end_copies();

  float o[kM][DV / 8][4], most[kM][2], sum[kM][2];  // in units of log 2; sum: of this lane's columns
  clear(o);
#pragma unroll
  for (int m = 0; m < kM; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = q0 + warp_row + 16 * m + 8 * half + g;
      most[m][half] = kNoScore, sum[m][half] = 0;
      if (row >= p.seq) continue;
      const float before = p.accumulate ? *p.lse_at(b, h, row) : -HUGE_VALF;
      if (before == -HUGE_VALF) continue;
      most[m][half] = before * kLog2E, sum[m][half] = t == 0 ? 1 : 0;
      const float* old = static_cast<const float*>(p.out.data) + p.out.at(b, row, h);
#pragma unroll
      for (int n = 0; n < DV / 8; n++)
        for (int e = 0; e < 2; e++)
          if (8 * n + 2 * t + e < p.v_dim) o[m][n][2 * half + e] = old[8 * n + 2 * t + e];
    }

  for (int k0 = from; k0 < last; k0 += kKeys) {
    wait_copies<0>();
    __syncthreads();  // K has come, and nobody reads V any more
    copy_tile<T, D>(v, p.v, b, k0, kv, p.keys - k0, kKeys, p.v_dim);
    end_copies();
    // Dropout draws before there are scores: later it would spill.
    uint32_t kept[kM];
    if constexpr (kDrops)
#pragma unroll
      for (int m = 0; m < kM; m++)
        kept[m] = bits_of<4 * kTiles>([&](int i) {
          const int j = i % (2 * kTiles), row = q0 + warp_row + 16 * m + i / (2 * kTiles) * 8 + g;
          return p.mask.keeps(b, h, row, k0 + j / 2 * 8 + 2 * t + j % 2);
        });
    float s[kM][kTiles][4];
    scores_of<T, D, kM, kTiles>(s, q, warp_row, k);
    const bool all_seen = !p.first && k0 + kKeys <= p.end_of(q0);
#pragma unroll
    for (int m = 0; m < kM; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int row = q0 + warp_row + 16 * m + 8 * half + g;
        if (!all_seen) {  // computed here: kept, they take 8 registers, which spill at 128 columns
          const SeenKeys seen = row < p.seq ? SeenKeys(p.begin_of(b, row), p.end_of(row)) : SeenKeys();
#pragma unroll
          for (int n = 0; n < kTiles; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) seen.hide(s[m][n][2 * half + e], k0 + 8 * n + 2 * t + e);
        }
        const float keep = probabilities_of(s[m], half, scale, most[m][half], sum[m][half]);
        if constexpr (kDrops) {
          const float factor = float(p.mask.scale);
#pragma unroll
          for (int n = 0; n < kTiles; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
              s[m][n][2 * half + e] *= kept[m] >> (2 * kTiles * half + 2 * n + e) & 1 ? factor : 0.0f;
        }
#pragma unroll
        for (int n = 0; n < DV / 8; n++) o[m][n][2 * half] *= keep, o[m][n][2 * half + 1] *= keep;
      }
    uint32_t prob[kM][kTiles / 2][4];  // half the registers of s, while K's addresses take theirs
    pairs_of<T>(prob, s);
    pin_pairs(prob);
    wait_copies<0>();
    __syncthreads();  // V has come, and nobody reads K any more
    if (k0 + kKeys < last) copy_tile<T, D>(k, p.k, b, k0 + kKeys, kv, p.keys - k0 - kKeys, kKeys, p.dim);
    end_copies();
    add_pairs<T, D, kM, kTiles / 2, DV>(o, prob, v, 0);
  }
  wait_copies<0>();
#pragma unroll
  for (int m = 0; m < kM; m++) {
    const int row = q0 + warp_row + 16 * m + g;
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float all = quad_sum(sum[m][half]);
      inverse[half] = all > 0 ? 1 / all : 0;
      if (t == 0 && row + 8 * half < p.seq)
        *p.lse_at(b, h, row + 8 * half) = all > 0 ? kLn2 * most[m][half] + logf(all) : -HUGE_VALF;
    }
    store_sums<T, DV / 8>(p.out, o[m], inverse, b, row, h, p.seq, 0, p.v_dim);
  }
}

// ---- backward ----

template <int D>
inline constexpr int kBackwardRows = D > 64 ? 32 : 64;  // of the tiles that are gone through
template <int D>
inline constexpr int64_t kBackwardBytes = (2 * 64 + 4 * kBackwardRows<D>)*kTileRow<D>* int64_t(2);

// Of an element with score s (not yet scaled; -infinity where it is not seen) and dP: P as dropped out into
// s, dS, not yet times scale, into dp. factor: what dropout multiplies P with.
__device__ __forceinline__ void gradients_of(float& s, float& dp, float scale, float lse, float delta,
                                             float factor) {
  const float prob = exp2_of(fmaf(s, scale, -lse));
  s = prob * factor;
  dp = prob * (factor * dp - delta);
}
// L in units of log 2; a row that sees nothing, or is none, gets P = 0.
template <class T>
__device__ __forceinline__ float lse_of(const AttentionProblem<T, float>& p, int b, int h, int row) {
  const float l = row < p.seq ? *p.lse_at(b, h, row) : -HUGE_VALF;
  return l == -HUGE_VALF ? kSeesNothing : l * kLog2E;
}

// Block (key block x columns of the gradients, kv head, sequence).
template <class T, int D, int DV, int kOut>
__global__ void __launch_bounds__(kMmaThreads) attention_key_gradients_mma(AttentionProblem<T, float> p) {
  constexpr int kKeys = 64, kRows = kBackwardRows<D>, kTiles = kRows / 8, kTile = kRows * kTileRow<D>;
  __shared__ float of_lse[2][kRows], of_delta[2][kRows];
  __shared__ SeenKeys of_keys[2][kRows];
  const int b = int(blockIdx.z), kv = int(blockIdx.y), group = p.heads / p.kv_heads;
  const int k0 = int(blockIdx.x) / (D / kOut) * kKeys, first = int(blockIdx.x) % (D / kOut) * kOut;
  const int warp_row = int(threadIdx.x) / 32 * 16, g = int(threadIdx.x) % 32 / 4, t = int(threadIdx.x) % 4;
  T* k = dynamic_shared<T>();
  T* v = k + kKeys * kTileRow<D>;
  T* q = v + kKeys * kTileRow<D>;  // two stages
  T* dout = q + 2 * kTile;
  const float scale = p.scale * kLog2E;
  const float factor = p.mask.on ? float(p.mask.scale) : 1.0f;

  const int q_from = p.first_row(k0) / kRows, q_blocks = (p.seq + kRows - 1) / kRows - q_from;
  const int steps = group * (q_blocks > 0 ? q_blocks : 0);
  auto fetch = [&](int step) {
    const int h = kv * group + step / q_blocks, q0 = (q_from + step % q_blocks) * kRows, stage = step % 2;
    copy_tile<T, D>(q + stage * kTile, p.q, b, q0, h, p.seq - q0, kRows, p.dim);
    copy_tile<T, D>(dout + stage * kTile, p.dout, b, q0, h, p.seq - q0, kRows, p.v_dim);
    for (int i = int(threadIdx.x); i < kRows; i += kMmaThreads) {
      const int row = q0 + i;
      of_lse[stage][i] = lse_of(p, b, h, row);
      of_delta[stage][i] = row < p.seq ? p.delta[p.delta_at(b, h, row)] : 0.0f;
      of_keys[stage][i] = row < p.seq ? SeenKeys(p.begin_of(b, row), p.end_of(row)) : SeenKeys();
    }
  };
  copy_tile<T, D>(k, p.k, b, k0, kv, p.keys - k0, kKeys, p.dim);
  copy_tile<T, D>(v, p.v, b, k0, kv, p.keys - k0, kKeys, p.v_dim);
  if (steps > 0) fetch(0);
  end_copies();

  float dk[1][kOut / 8][4], dv[1][kOut / 8][4];
  clear(dk), clear(dv);
  for (int step = 0; step < steps; step++) {
    const int h = kv * group + step / q_blocks, q0 = (q_from + step % q_blocks) * kRows, stage = step % 2;
    wait_copies<0>();
    __syncthreads();  // this stage has come, and nobody reads the other any more
    if (step + 1 < steps) fetch(step + 1);
    end_copies();
    const T *q_now = q + stage * kTile, *dout_now = dout + stage * kTile;
    float s[1][kTiles][4], dp[1][kTiles][4];  // rows are keys, columns queries
    scores_of<T, D, 1, kTiles>(s, k, warp_row, q_now);
    scores_of<T, D, 1, kTiles, DV>(dp, v, warp_row, dout_now);
    const bool all_seen = !p.first && (!p.causal || q0 + p.offset + 1 >= k0 + kKeys);
    uint32_t kept = ~0u;
    if (p.mask.on)
      kept = bits_of<4 * kTiles>([&](int i) {
        return p.mask.keeps(b, h, q0 + i / 4 * 8 + 2 * t + i % 2, k0 + warp_row + g + i % 4 / 2 * 8);
      });
    if (!all_seen) {
#pragma unroll
      for (int n = 0; n < kTiles; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          of_keys[stage][8 * n + 2 * t + e % 2].hide(s[0][n][e], k0 + warp_row + g + e / 2 * 8);
    }
#pragma unroll
    for (int n = 0; n < kTiles; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int i = 8 * n + 2 * t + e % 2;
        gradients_of(s[0][n][e], dp[0][n][e], scale, of_lse[stage][i], of_delta[stage][i],
                     kept >> (4 * n + e) & 1 ? factor : 0.0f);
      }
    add_product<T, D, 1, kTiles, kOut>(dv, s, dout_now, first);
    add_product<T, D, 1, kTiles, kOut>(dk, dp, q_now, first);
  }
  wait_copies<0>();
  const float by_scale[2] = {p.scale, p.scale}, whole[2] = {1, 1};
  store_sums<T, kOut / 8>(p.dk, dk[0], by_scale, b, k0 + warp_row + g, kv, p.keys, first, p.dim);
  store_sums<T, kOut / 8>(p.dv, dv[0], whole, b, k0 + warp_row + g, kv, p.keys, first, p.v_dim);
}

// Block (query block, head, sequence).
template <class T, int D, int DV>
__global__ void __launch_bounds__(kMmaThreads) attention_query_gradient_mma(AttentionProblem<T, float> p) {
  constexpr int kRows = 64, kKeys = kBackwardRows<D>, kTiles = kKeys / 8, kTile = kKeys * kTileRow<D>;
  const int b = int(blockIdx.z), h = int(blockIdx.y), kv = p.kv_head(h);
  const int q0 = int(gridDim.x - 1 - blockIdx.x) * kRows, rows = p.seq - q0 < kRows ? p.seq - q0 : kRows;
  const int warp_row = int(threadIdx.x) / 32 * 16, g = int(threadIdx.x) % 32 / 4, t = int(threadIdx.x) % 4;
  T* q = dynamic_shared<T>();
  T* dout = q + kRows * kTileRow<D>;
  T* k = dout + kRows * kTileRow<D>;  // two stages
  T* v = k + 2 * kTile;
  const float scale = p.scale * kLog2E;
  const float factor = p.mask.on ? float(p.mask.scale) : 1.0f;

  const int from = p.begin_of_rows(b, q0, rows) / kKeys * kKeys, last = p.end_of(q0 + rows - 1);
  auto fetch = [&](int k0) {
    const int stage = k0 / kKeys % 2;
    copy_tile<T, D>(k + stage * kTile, p.k, b, k0, kv, p.keys - k0, kKeys, p.dim);
    copy_tile<T, D>(v + stage * kTile, p.v, b, k0, kv, p.keys - k0, kKeys, p.v_dim);
  };
  copy_tile<T, D>(q, p.q, b, q0, h, rows, kRows, p.dim);
  copy_tile<T, D>(dout, p.dout, b, q0, h, rows, kRows, p.v_dim);
  if (from < last) fetch(from);
  end_copies();

  float lse[2], delta[2], dq[1][D / 8][4];
  SeenKeys seen[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = q0 + warp_row + g + 8 * half;
    lse[half] = lse_of(p, b, h, row);
    delta[half] = row < p.seq ? p.delta[p.delta_at(b, h, row)] : 0.0f;
    if (row < p.seq) seen[half] = SeenKeys(p.begin_of(b, row), p.end_of(row));
  }
  clear(dq);
  for (int k0 = from; k0 < last; k0 += kKeys) {
    wait_copies<0>();
    __syncthreads();
    if (k0 + kKeys < last) fetch(k0 + kKeys);
    end_copies();
    const T *k_now = k + k0 / kKeys % 2 * kTile, *v_now = v + k0 / kKeys % 2 * kTile;
    float s[1][kTiles][4], dp[1][kTiles][4];
    scores_of<T, D, 1, kTiles>(s, q, warp_row, k_now);
    scores_of<T, D, 1, kTiles, DV>(dp, dout, warp_row, v_now);
    const bool all_seen = !p.first && k0 + kKeys <= p.end_of(q0);
    uint32_t kept = ~0u;
    if (p.mask.on)
      kept = bits_of<4 * kTiles>([&](int i) {
        return p.mask.keeps(b, h, q0 + warp_row + g + i % 4 / 2 * 8, k0 + i / 4 * 8 + 2 * t + i % 2);
      });
    if (!all_seen) {
#pragma unroll
      for (int n = 0; n < kTiles; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) seen[e / 2].hide(s[0][n][e], k0 + 8 * n + 2 * t + e % 2);
    }
#pragma unroll
    for (int n = 0; n < kTiles; n++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        gradients_of(s[0][n][e], dp[0][n][e], scale, lse[e / 2], delta[e / 2],
                     kept >> (4 * n + e) & 1 ? factor : 0.0f);
    add_product<T, D, 1, kTiles, D>(dq, dp, k_now, 0);
  }
  wait_copies<0>();
  const float by_scale[2] = {p.scale, p.scale};
  store_sums<T, D / 8>(p.dq, dq[0], by_scale, b, q0 + warp_row + g, h, p.seq, 0, p.dim);
}

// ---- which problems, and launches ----

// Rows of 16-byte chunks?
inline bool in_chunks(const Tensor& t) {
  bool ok = reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.shape[3] % 8 == 0;
  for (int d = 0; d < 3; d++) ok &= t.shape[d] <= 1 || t.stride[size_t(d)] % 8 == 0;
  return ok;
}
// Bytes of shared memory that a block may have (CUDA programming guide, "Technical specifications").
inline int64_t most_shared_bytes(const CudaContext& ctx) {
  if (ctx.major == 8 && ctx.minor == 0) return 163 << 10;
  if (ctx.major == 9 || ctx.major == 10) return 227 << 10;
  return 99 << 10;
}
template <class Args>
int64_t widest(const Args& a) {
  return a.q.shape[3] > a.v.shape[3] ? a.q.shape[3] : a.v.shape[3];
}
// The largest score times `scale` is the largest scaled one: of a positive scale alone.
inline bool takes_mma(const AttentionArgs& a, const CudaContext& ctx) {
  return ctx.major >= 8 && a.scale > 0 && widest(a) <= 256 && in_chunks(a.q) && in_chunks(a.k) &&
         in_chunks(a.v) && in_chunks(a.o);
}
inline bool takes_mma(const AttentionBackwardArgs& a, const CudaContext& ctx) {
  bool ok = ctx.major >= 8 && a.scale > 0 && widest(a) <= 256;
  for (const Tensor* t : {&a.q, &a.k, &a.v, &a.dout, &a.dq, &a.dk, &a.dv}) ok &= in_chunks(*t);
  return ok && (widest(a) <= 128 || kBackwardBytes<256> <= most_shared_bytes(ctx));
}

template <class T>
void run_mma(void (*kernel)(AttentionProblem<T, float>), Grid grid, int64_t bytes, cudaStream_t stream,
             const AttentionProblem<T, float>& p) {
  if (bytes > 48 << 10) allow_shared(kernel, bytes);
  run_blocks(kernel, grid, kMmaThreads, bytes, stream, p);
}

// f(D, DV): head_widths of what the heads have.
template <size_t i = 0, class F>
void by_widths(int d, int v, const F& f) {
  if constexpr (i < std::size(kHeadWidths)) {
    constexpr HeadWidths w = kHeadWidths[i];
    if (w == head_widths(d, v))
      f(std::integral_constant<int, w.d>(), std::integral_constant<int, w.v>());
    else
      by_widths<i + 1>(d, v, f);
  }
}

template <class T>
void forward_mma(const AttentionProblem<T, float>& p, cudaStream_t stream) {
  by_widths(p.dim, p.v_dim, [&](auto d, auto v) {
    constexpr int D = d(), DV = v(), kM = DV > 128 ? 1 : 2;
    const auto kernel =
        p.mask.on ? attention_forward_mma<T, D, DV, kM, true> : attention_forward_mma<T, D, DV, kM, false>;
    run_mma(kernel, Grid(ceil_div(p.seq, 64 * kM), p.heads, p.batch), kForwardBytes<D, kM>, stream, p);
  });
}
template <class T>
void backward_mma(const AttentionProblem<T, float>& p, cudaStream_t stream) {
  by_widths(p.dim, p.v_dim, [&](auto d, auto v) {
    constexpr int D = d(), DV = v(), kOut = D > 128 ? D / 2 : D;
    run_mma(attention_key_gradients_mma<T, D, DV, kOut>,
            Grid(ceil_div(p.keys, 64) * (D / kOut), p.kv_heads, p.batch), kBackwardBytes<D>, stream, p);
    run_mma(attention_query_gradient_mma<T, D, DV>, Grid(ceil_div(p.seq, 64), p.heads, p.batch),
            kBackwardBytes<D>, stream, p);
  });
}

}  // namespace trireme::cuda
