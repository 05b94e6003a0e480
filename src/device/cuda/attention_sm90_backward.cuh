// What attention's backward kernels for sm_90a share (attention_sm90_backward.cu: heads of up to 128 columns;
// attention_sm90_wide.cu: beyond): what a step's queries are, the sums of dQ in memory and who adds to them.
#pragma once
#include "device/cuda/attention_simt.cuh"
#include "device/cuda/attention_sm90.cuh"

namespace trireme::cuda {

inline constexpr int kBackwardThreads = 3 * 128, kBackwardConsumers = 2 * 128, kBackwardWarps = 8;

// What a step's queries are, beside their tiles.
struct Queries {
  alignas(16) float lse[128], delta[128];
  SeenKeys keys[128];
  int q0 = 0, head = 0, before = 0;  // q0 < 0: no more steps
};
// Where a piece of dQ goes.
struct Piece {
  int64_t step;  // < 0: no more
  int before;
};
struct PieceBarriers {  // of each consumer's
  uint64_t full[2], empty[2];
};

// Sums of dQ, in scratch behind rows of delta.
struct DqSums {
  float* sums = nullptr;
  int *counts = nullptr, *ticket = nullptr;
  int steps = 0;  // of a head

  __device__ int64_t step_of(int b, int heads, int h, int q0, int rows) const {
    return (int64_t(b) * heads + h) * steps + q0 / rows;
  }
};
// At 0.
template <class T>
DqSums dq_sums(const AttentionProblem<T, float>& p, const Tensor& scratch, HeadWidths w,
               cudaStream_t stream) {
  const sm90::BackwardScratch of(p.batch, p.heads, p.seq, w);
  std::byte* at = scratch.data + sm90::backward_sums_at(p.batch * int64_t(p.heads) * p.seq);
  set_bytes(at + of.counts, 0, of.bytes - of.counts, stream);
  return {reinterpret_cast<float*>(at), reinterpret_cast<int*>(at + of.counts),
          reinterpret_cast<int*>(at + of.ticket), int(ceil_div(p.seq, sm90::rows_of(w)))};
}

__device__ __forceinline__ int least_of_warp(int x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const int other = __shfl_xor_sync(0xffffffffu, x, step);
    x = other < x ? other : x;
  }
  return x;
}
// The first key that one of the rows sees; a warp's.
template <class T>
__device__ __forceinline__ int least_of_rows(const AttentionProblem<T, float>& p, int b, int q0, int rows) {
  int own = p.first ? p.keys : 0;
  if (p.first)
    for (int j = int(threadIdx.x) % 32; j < rows; j += 32) {
      const int begin = p.begin_of(b, q0 + j);
      own = begin < own ? begin : own;
    }
  return least_of_warp(own);
}

template <int kRows, int kColumns>
__device__ __forceinline__ void copy_tiles(uint32_t to, const TileMap& map, uint64_t& barrier, int h, int row,
                                           int b) {
#pragma unroll
  for (int panel = 0; panel < sm90::panels(kColumns); panel++)
    copy_box(to + uint32_t(panel * sm90::panel_bytes(kRows)), map, barrier, panel * sm90::kPanelColumns, h,
             row, b);
}

// What R queries are, by a warp's lanes; those behind `rows` see nothing.
template <int R, class T>
__device__ __forceinline__ void put_queries(Queries& to, const AttentionProblem<T, float>& p, int b, int h,
                                            int q0, int rows, int before) {
  const int lane = int(threadIdx.x) % 32;
  float lse[R / 32], delta[R / 32];
#pragma unroll
  for (int i = 0; i < R / 32; i++) {  // all of them on their way before the first is waited for
    const int j = lane + 32 * i;
    lse[i] = lse_of(p, b, h, q0 + j);
    delta[i] = j < rows ? p.delta[p.delta_at(b, h, q0 + j)] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < R / 32; i++) to.lse[lane + 32 * i] = lse[i], to.delta[lane + 32 * i] = delta[i];
  for (int j = lane; j < R; j += 32) {
    const bool there = j < rows;
    to.keys[j] = there ? SeenKeys(p.begin_of(b, q0 + j), p.end_of(q0 + j)) : SeenKeys();
  }
  if (lane == 0) to.q0 = q0, to.head = h, to.before = before;
}

// One thread: adds the consumers' pieces of dQ, kPieces a step, to sums in memory by bulk copies, key blocks
// in ascending order: it waits until a count says that those before have added theirs.
template <int kPieces>
__device__ __forceinline__ void write_pieces(const DqSums& dq, PieceBarriers& barriers, const Piece* pieces,
                                             uint32_t staged) {
  for (uint32_t i = 0;; i++) {
    int64_t step = 0;
#pragma unroll
    for (int n = 0; n < kPieces; n++) {
      const int c = n % 2;
      const uint32_t before_it = i * ((kPieces + 1 - c) / 2) + n / 2;  // that consumer's
      wait_for<spin_name("p_full")>(barriers.full[c], before_it % 2);
      step = pieces[c].step;
      const int before = pieces[c].before;
      if (step < 0) return;
      if (n == 0) {
        wait_count(dq.counts + step, before);
        fence_async_memory();  // what others' copies wrote, as the count said, before these copies
      }
      float* to = dq.sums + (step * kPieces + n) * sm90::kPieceFloats;
      const uint32_t from = staged + uint32_t(c * sm90::kPieceBytes);
      if (before > 0)
        add_out(to, from, sm90::kPieceBytes);
      else
        store_out(to, from, sm90::kPieceBytes);
      end_out();
      wait_out_read();
      arrive(barriers.empty[c]);
    }
    wait_out();
    fence_async_memory();
    raise_count(dq.counts + step);
  }
}

// P = 2^(S - L) of what is seen, else 0. Rows of s are keys, columns queries from `first` on of a step's.
template <int kTiles>
__device__ __forceinline__ void probabilities(float (&s)[kTiles][4], const Queries& queries, int first,
                                              bool all_seen, int key, float scale) {
  const int t = int(threadIdx.x) % 4;
  if (!all_seen) {
#pragma unroll
    for (int j = 0; j < kTiles; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) queries.keys[first + 8 * j + 2 * t + e % 2].hide(s[j][e], key + e / 2 * 8);
  }
#pragma unroll
  for (int j = 0; j < kTiles; j++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      s[j][e] = exp2_of(fmaf(s[j][e], scale, -queries.lse[first + 8 * j + 2 * t + e % 2]));
}

// dP to dS, not yet times scale, and P to what is left of it when dropped out.
template <bool kDrops, int kTiles, class T>
__device__ __forceinline__ void gradients_of_scores(float (&s)[kTiles][4], float (&dp)[kTiles][4],
                                                    const AttentionProblem<T, float>& p,
                                                    const Queries& queries, int first, int b, int h, int q0,
                                                    int key) {
  constexpr int kPart = kTiles < 8 ? kTiles : 8;  // tiles whose draws fit 32 bits
  const int t = int(threadIdx.x) % 4;
#pragma unroll
  for (int part = 0; part < kTiles / kPart; part++) {
    const int from = first + 8 * kPart * part;
    uint32_t kept = ~0u;
    const float factor = kDrops ? float(p.mask.scale) : 1.0f;
    if constexpr (kDrops)
      kept = bits_of<4 * kPart>([&](int x) {
        return p.mask.keeps(b, h, q0 + from + x / 4 * 8 + 2 * t + x % 2, key + x % 4 / 2 * 8);
      });
#pragma unroll
    for (int j = 0; j < kPart; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        float &prob = s[kPart * part + j][e], &x = dp[kPart * part + j][e];
        const float by = !kDrops || kept >> (4 * j + e) & 1 ? factor : 0.0f;
        x = prob * (by * x - queries.delta[from + 8 * j + 2 * t + e % 2]);
        prob *= by;
      }
  }
}

// dQ from its sums: block (step, head, sequence), 128 threads a piece; a thread has of it what a thread of a
// consumer had.
template <class T, int D, int DV>
__global__ void __launch_bounds__(128 * sm90::pieces({D, DV}))
    attention_finish_dq(AttentionProblem<T, float> p, DqSums dq) {
  constexpr HeadWidths kWidths{D, DV};
  constexpr int R = sm90::rows_of(kWidths), kPieces = sm90::pieces(kWidths);
  const int b = int(blockIdx.z), h = int(blockIdx.y), q0 = int(blockIdx.x) * R;
  const int n = int(threadIdx.x) / 128, thread = int(threadIdx.x) % 128;
  const int64_t step = dq.step_of(b, p.heads, h, q0, R);
  const bool any = dq.counts[step] > 0;
  const float* from = dq.sums + (step * kPieces + n) * sm90::kPieceFloats + 4 * thread;
  const int row = q0 + sm90::piece_row(kWidths, n) + thread / 32 * 16 + thread % 32 / 4;
  const int column = sm90::kPanelColumns * sm90::piece_panel(kWidths, n) + thread % 4 * 2;
  for (int j = 0; j < 8; j++)
    for (int half = 0; half < 2; half++) {
      const float low = any ? from[512 * j + 2 * half] : 0.0f,
                  high = any ? from[512 * j + 2 * half + 1] : 0.0f;
      if (row + 8 * half < p.seq && column + 8 * j < p.dim)
        p.dq.put_pair(p.dq.at(b, row + 8 * half, h) + column + 8 * j, p.scale * low, p.scale * high);
    }
}
template <int D, int DV, class T>
void finish_dq(const AttentionProblem<T, float>& p, const DqSums& dq, cudaStream_t stream) {
  run_blocks(attention_finish_dq<T, D, DV>, Grid(dq.steps, p.heads, p.batch), 128 * sm90::pieces({D, DV}), 0,
             stream, p, dq);
}

// Heads beyond 128 columns (attention_sm90_wide.cu); delta is there.
void launch_wide_backward(const AttentionProblem<bf16, float>&, const Tensor& scratch, cudaStream_t);
void launch_wide_backward(const AttentionProblem<f16, float>&, const Tensor& scratch, cudaStream_t);

}  // namespace trireme::cuda
