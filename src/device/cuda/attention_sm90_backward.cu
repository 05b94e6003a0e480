// FlashAttention for Hopper (2407.08608, section 3; its appendix on the backward pass), backward, bf16 and
// f16, on wgmma and TMA. sm_90a alone. HAS NOT RUN ON A GPU: on a processor it runs as it is by emulation
// (tests/emulate/emulate_sm90.h); nobody takes it but by CudaContext::sm90_attention.
//
//   P = 2^(S - L), S = scale K Q^T; dP = V dO^T; dS = P o (dP - D), D = rowsum(dO o O) in scratch before;
//   dV += P^T dO; dK += scale dS^T Q; dQ += scale dS K            (S, L in units of log 2)
//
// q, dq [B,S,H,D]; k, dk [B,Sk,KV,D]; v, dv [B,Sk,KV,DV]; dout [B,S,H,DV], T (gradients T or f32); lse
// [B,H,S] f32. D, DV <= 128, multiples of 8. Who sees whom: AttentionProblem.
//
// Block (key block, kv head, sequence), by tickets: 128 keys, 64 to each consumer, which goes through all
// heads that share them and all queries that see them, by R = 128 (D <= 64) or 64 a step. Three warpgroups:
//   producer    one warp: K and V once, then Q, dO (TMA), L, D and documents of a step into two stages
//   writer      one thread: adds the consumers' pieces of dQ, 64 x 64 floats each, to f32 sums in memory by
//               bulk copies, key blocks in ascending order: it waits until a count says that those before
//               have added theirs. Tickets hand blocks out in that order, so who is waited for has begun.
//   consumers   S^T and dP^T (m64nRk16, all operands in shared memory) in registers; P^T and dS^T, rounded,
//               are left operands of dV and dK from there (m64nDk16); dS^T goes to shared memory as well,
//               and a consumer multiplies its queries or its columns of dQ (m64n64k16, both operands
//               turned). dV's product runs while dS is stored.
// Then a kernel that scales and rounds the sums of dQ.
//
// Shared memory: 2 x 128 x D, 4 R x D, 128 x R of 2 B, 32 KiB of dQ: 160 KiB at D = 64, 176 KiB at 96 and
// 128. FLOPs: 10 D a pair of query and key that is computed (whole tiles of 128 x R along the diagonal);
// bytes: a step reads 2 R D x 2 B and adds R D x 4 B to sums that the L2 cache holds. Sums f32, every one a
// chain of a fixed order: the same bits every time, whatever the timing.
#include "device/cuda/attention.h"
#include "device/cuda/attention_simt.cuh"
#include "device/cuda/attention_sm90.cuh"

namespace trireme::cuda {
namespace {

using namespace sm90;

constexpr int kBackwardThreads = 3 * 128, kBackwardConsumers = 2 * 128, kBackwardWarps = 8;

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
struct BackwardBarriers {
  uint64_t kv, full[kStages], empty[kStages], piece_full[2], piece_empty[2];
};

struct DqSums {
  float* sums = nullptr;
  int *counts = nullptr, *ticket = nullptr;
  int steps = 0;  // of a head

  __device__ int64_t step_of(int b, int heads, int h, int q0, int rows) const {
    return (int64_t(b) * heads + h) * steps + q0 / rows;
  }
};

__device__ __forceinline__ int least_of_warp(int x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const int other = __shfl_xor_sync(0xffffffffu, x, step);
    x = other < x ? other : x;
  }
  return x;
}

template <int kRows, int D>
__device__ __forceinline__ void copy_tiles(uint32_t to, const TileMap& map, uint64_t& barrier, int h, int row,
                                           int b) {
#pragma unroll
  for (int panel = 0; panel < panels(D); panel++)
    copy_box(to + uint32_t(panel * panel_bytes(kRows)), map, barrier, panel * kPanelColumns, h, row, b);
}

// One warp.
template <class T, int D>
__device__ __forceinline__ void produce_steps(const TileMap& q, const TileMap& k, const TileMap& v,
                                              const TileMap& dout, const AttentionProblem<T, float>& p,
                                              BackwardBarriers& barriers, Queries* queries, uint32_t shared,
                                              int n, int kv, int b) {
  constexpr int R = rows_of(D);
  const int lane = int(threadIdx.x) % 32;
  if (lane == 0) {
    arrive_expecting(barriers.kv, 2 * tile_bytes(kBlockKeys, D));
    copy_tiles<kBlockKeys, D>(shared + uint32_t(backward_k_at(D)), k, barriers.kv, kv, n * kBlockKeys, b);
    copy_tiles<kBlockKeys, D>(shared + uint32_t(backward_v_at(D)), v, barriers.kv, kv, n * kBlockKeys, b);
  }
  int i = 0;
  const auto least = [&](int q0, int rows) {
    int own = p.first ? p.keys : 0;
    if (p.first)
      for (int j = lane; j < rows; j += 32) {
        const int begin = p.begin_of(b, q0 + j);
        own = begin < own ? begin : own;
      }
    return least_of_warp(own);
  };
  each_step<R>(p, n, kv, least, [&](int h, int q0, int rows, const KeyBlocks& blocks) {
    const int stage = stage_of(i);
    wait_for(barriers.empty[stage], empty_phase(i));
    Queries& to = queries[stage];
    for (int j = lane; j < R; j += 32) {
      const bool there = j < rows;
      to.lse[j] = lse_of(p, b, h, q0 + j);
      to.delta[j] = there ? p.delta[p.delta_at(b, h, q0 + j)] : 0.0f;
      to.keys[j] = there ? SeenKeys(p.begin_of(b, q0 + j), p.end_of(q0 + j)) : SeenKeys();
    }
    if (lane == 0) {
      to.q0 = q0, to.head = h, to.before = blocks.before(n);
      arrive_expecting(barriers.full[stage], 2 * tile_bytes(R, D));
      copy_tiles<R, D>(shared + uint32_t(backward_q_at(D, stage)), q, barriers.full[stage], h, q0, b);
      copy_tiles<R, D>(shared + uint32_t(backward_dout_at(D, stage)), dout, barriers.full[stage], h, q0, b);
    } else {
      arrive(barriers.full[stage]);
    }
    i++;
  });
  wait_for(barriers.empty[stage_of(i)], empty_phase(i));
  if (lane == 0) queries[stage_of(i)].q0 = -1;
  arrive(barriers.full[stage_of(i)]);
}

// One thread.
__device__ __forceinline__ void write_pieces(const DqSums& dq, BackwardBarriers& barriers,
                                             const Piece* pieces, uint32_t staged) {
  for (uint32_t i = 0;; i++) {
    int64_t step = 0;
    for (int c = 0; c < 2; c++) {
      wait_for(barriers.piece_full[c], i % 2);
      step = pieces[c].step;
      const int before = pieces[c].before;
      if (step < 0) return;
      if (c == 0) {
        wait_count(dq.counts + step, before);
        fence_async_memory();  // what others' copies wrote, as the count said, before these copies
      }
      float* to = dq.sums + (step * 2 + c) * kPieceFloats;
      if (before > 0)
        add_out(to, staged + uint32_t(c * kPieceBytes), kPieceBytes);
      else
        store_out(to, staged + uint32_t(c * kPieceBytes), kPieceBytes);
      end_out();
      wait_out_read();
      arrive(barriers.piece_empty[c]);
    }
    wait_out();
    fence_async_memory();
    raise_count(dq.counts + step);
  }
}

// P = 2^(S - L) of what is seen, else 0.
template <int kTiles>
__device__ __forceinline__ void probabilities(float (&s)[kTiles][4], const Queries& queries, bool all_seen,
                                              int key, float scale) {
  const int t = int(threadIdx.x) % 4;
  if (!all_seen) {
#pragma unroll
    for (int j = 0; j < kTiles; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) queries.keys[8 * j + 2 * t + e % 2].hide(s[j][e], key + e / 2 * 8);
  }
#pragma unroll
  for (int j = 0; j < kTiles; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) s[j][e] = exp2_of(fmaf(s[j][e], scale, -queries.lse[8 * j + 2 * t + e % 2]));
}

template <class T, int D, bool kDrops>
__device__ __forceinline__ void consume_steps(const AttentionProblem<T, float>& p, const DqSums& dq,
                                              BackwardBarriers& barriers, const Queries* queries,
                                              Piece* pieces, uint32_t shared, int consumer, int n, int kv,
                                              int b) {
  constexpr int R = rows_of(D), kTiles = R / 8;
  const int thread = int(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32, t = lane % 4;
  const int own_row = 64 * consumer + 16 * warp, key = n * kBlockKeys + own_row + lane / 4;
  const uint32_t k = shared + uint32_t(backward_k_at(D)), v = shared + uint32_t(backward_v_at(D)),
                 ds = shared + uint32_t(ds_at(D)), staged = shared + uint32_t(piece_at(D, consumer));
  const float scale = p.scale * kLog2E;
  float dk[D / 8][4], dv[D / 8][4], s[kTiles][4], dp[kTiles][4];
  uint32_t prob_pairs[R / 16][4], ds_pairs[R / 16][4];
#pragma unroll
  for (int i = 0; i < D / 8; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) dk[i][e] = 0, dv[i][e] = 0;

  wait_for(barriers.kv, 0);
  int i = 0;
  for (;; i++) {
    const int stage = stage_of(i);
    wait_for(barriers.full[stage], full_phase(i));
    const Queries& now = queries[stage];
    const int q0 = now.q0, h = now.head;
    if (q0 < 0) break;
    const uint32_t q = shared + uint32_t(backward_q_at(D, stage)),
                   dout = shared + uint32_t(backward_dout_at(D, stage));
    pin(s), pin(dp);
    begin_products();
#pragma unroll
    for (int step = 0; step < D / 16; step++)
      multiply<false, false>(s, summed_columns(k, kBlockKeys, 64 * consumer, step),
                             summed_columns(q, R, 0, step), step == 0, T());
    end_products();
#pragma unroll
    for (int step = 0; step < D / 16; step++)
      multiply<false, false>(dp, summed_columns(v, kBlockKeys, 64 * consumer, step),
                             summed_columns(dout, R, 0, step), step == 0, T());
    end_products();
    wait_products<1>();
    pin(s);
    const bool all_seen = !p.first && (n + 1) * kBlockKeys <= p.keys &&
                          (!p.causal || q0 + p.offset + 1 >= int64_t(n + 1) * kBlockKeys);
    probabilities(s, now, all_seen, key, scale);
    wait_products<0>();
    pin(dp);
    // dP as dropped out, and dS; P as dropped out.
#pragma unroll
    for (int part = 0; part < kTiles / 8; part++) {
      uint32_t kept = ~0u;
      const float factor = kDrops ? float(p.mask.scale) : 1.0f;
      if constexpr (kDrops)
        kept = bits_of<32>([&](int x) {
          return p.mask.keeps(b, h, q0 + 64 * part + x / 4 * 8 + 2 * t + x % 2, key + x % 4 / 2 * 8);
        });
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          float &prob = s[8 * part + j][e], &x = dp[8 * part + j][e];
          const float by = !kDrops || kept >> (4 * j + e) & 1 ? factor : 0.0f;
          x = prob * (by * x - now.delta[64 * part + 8 * j + 2 * t + e % 2]);
          prob *= by;
        }
    }
    round_pairs<T>(prob_pairs, s);
    round_pairs<T>(ds_pairs, dp);
    pin(dv), pin(prob_pairs);
    begin_products();
#pragma unroll
    for (int step = 0; step < R / 16; step++)
      multiply<true>(dv, prob_pairs[step], summed_rows(dout, R, 0, step), T());
    end_products();
    meet(1, kBackwardConsumers);  // both have read dS^T of the step before
#pragma unroll
    for (int step = 0; step < R / 16; step++)
      store_matrices(chunk_at(ds, kBlockKeys, own_row + lane / 8 % 2 * 8 + lane % 8, 2 * step + lane / 16),
                     ds_pairs[step]);
    fence_async();
    meet(2, kBackwardConsumers);  // both have written it
    float sums[8][4];
    pin(dk), pin(sums), pin(ds_pairs);
    begin_products();
#pragma unroll
    for (int step = 0; step < kBlockKeys / 16; step++)
      multiply<true, true>(sums, summed_rows(ds, kBlockKeys, piece_row(D, consumer) / 64, step),
                           summed_rows(k, kBlockKeys, piece_panel(D, consumer), step), step == 0, T());
    end_products();
#pragma unroll
    for (int step = 0; step < R / 16; step++)
      multiply<true>(dk, ds_pairs[step], summed_rows(q, R, 0, step), T());
    end_products();
    wait_products<1>();
    pin(sums), pin(prob_pairs);
    const int before = now.before;
    wait_for(barriers.piece_empty[consumer], uint32_t(i % 2 ^ 1));
#pragma unroll
    for (int j = 0; j < 8; j++) put_floats(staged + uint32_t((128 * j + thread) * 16), sums[j]);
    if (thread == 0) pieces[consumer] = {dq.step_of(b, p.heads, h, q0, R), before};
    fence_async();
    arrive(barriers.piece_full[consumer]);
    wait_products<0>();
    pin(dv), pin(dk), pin(ds_pairs);
    if (lane == 0) arrive(barriers.empty[stage]);
  }
  wait_for(barriers.piece_empty[consumer], uint32_t(i % 2 ^ 1));
  if (thread == 0) pieces[consumer].step = -1;
  arrive(barriers.piece_full[consumer]);

  const float by_scale[2] = {p.scale, p.scale}, whole[2] = {1, 1};
  store_sums<T, D / 8>(p.dk, dk, by_scale, b, key, kv, p.keys, 0, p.dim);
  store_sums<T, D / 8>(p.dv, dv, whole, b, key, kv, p.keys, 0, p.v_dim);
}

template <class T, int D, bool kDrops>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    attention_backward_sm90(const __grid_constant__ TileMap q, const __grid_constant__ TileMap k,
                            const __grid_constant__ TileMap v, const __grid_constant__ TileMap dout,
                            const __grid_constant__ AttentionProblem<T, float> p,
                            const __grid_constant__ DqSums dq) {
  __shared__ BackwardBarriers barriers;
  __shared__ Queries queries[kStages];
  __shared__ Piece pieces[2];
  __shared__ int own_ticket;
  const uint32_t shared = (shared_address(dynamic_shared<char>()) + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    init_barrier(barriers.kv, 1);
    for (int stage = 0; stage < kStages; stage++)
      init_barrier(barriers.full[stage], 32), init_barrier(barriers.empty[stage], kBackwardWarps);
    for (int c = 0; c < 2; c++)
      init_barrier(barriers.piece_full[c], 128), init_barrier(barriers.piece_empty[c], 1);
    show_barriers();
    fence_async();
    own_ticket = atomicAdd(dq.ticket, 1);
  }
  __syncthreads();
  const auto [n, kv, b] = block_of_ticket(own_ticket, p.batch, p.kv_heads);
  const int group = int(threadIdx.x) / 128, warp = int(threadIdx.x) / 32;
  if (group == 0) {
    keep_registers<24>();
    if (warp == 0) produce_steps<T, D>(q, k, v, dout, p, barriers, queries, shared, n, kv, b);
    if (threadIdx.x == 32) write_pieces(dq, barriers, pieces, shared + uint32_t(piece_at(D, 0)));
  } else {
    take_registers<240>();
    consume_steps<T, D, kDrops>(p, dq, barriers, queries, pieces, shared, group - 1, n, kv, b);
  }
}

// dQ from its sums: block (step, head, sequence), 128 threads a piece; a thread has of it what a thread of a
// consumer had.
template <class T, int D>
__global__ void __launch_bounds__(256) attention_finish_dq(AttentionProblem<T, float> p, DqSums dq) {
  constexpr int R = rows_of(D);
  const int b = int(blockIdx.z), h = int(blockIdx.y), q0 = int(blockIdx.x) * R;
  const int c = int(threadIdx.x) / 128, thread = int(threadIdx.x) % 128;
  const int64_t step = dq.step_of(b, p.heads, h, q0, R);
  const bool any = dq.counts[step] > 0;
  const float* from = dq.sums + (step * 2 + c) * kPieceFloats + 4 * thread;
  const int row = q0 + piece_row(D, c) + thread / 32 * 16 + thread % 32 / 4;
  const int column = kPanelColumns * piece_panel(D, c) + thread % 4 * 2;
  for (int j = 0; j < 8; j++)
    for (int half = 0; half < 2; half++) {
      const float low = any ? from[512 * j + 2 * half] : 0.0f,
                  high = any ? from[512 * j + 2 * half + 1] : 0.0f;
      if (row + 8 * half < p.seq && column + 8 * j < p.dim)
        p.dq.put_pair(p.dq.at(b, row + 8 * half, h) + column + 8 * j, p.scale * low, p.scale * high);
    }
}

template <class T, int D>
void launch_backward_sm90(const AttentionProblem<T, float>& p, const Tensor& scratch, cudaStream_t stream) {
  constexpr int R = rows_of(D);
  const TileMap q = map_of(tiles_of(p.q, p.batch, p.seq, p.heads, p.dim), R),
                k = map_of(tiles_of(p.k, p.batch, p.keys, p.kv_heads, p.dim), kBlockKeys),
                v = map_of(tiles_of(p.v, p.batch, p.keys, p.kv_heads, p.v_dim), kBlockKeys),
                dout = map_of(tiles_of(p.dout, p.batch, p.seq, p.heads, p.v_dim), R);
  const BackwardScratch of(p.batch, p.heads, p.seq, D);
  std::byte* at = scratch.data + backward_sums_at(p.batch * int64_t(p.heads) * p.seq);
  DqSums dq{reinterpret_cast<float*>(at), reinterpret_cast<int*>(at + of.counts),
            reinterpret_cast<int*>(at + of.ticket), int(ceil_div(p.seq, R))};
  set_bytes(at + of.counts, 0, of.bytes - of.counts, stream);
  const auto kernel = p.mask.on ? attention_backward_sm90<T, D, true> : attention_backward_sm90<T, D, false>;
  allow_shared(kernel, backward_shared_bytes(D));
  run_blocks(kernel, Grid(ceil_div(p.keys, kBlockKeys) * p.kv_heads * p.batch), kBackwardThreads,
             backward_shared_bytes(D), stream, q, k, v, dout, p, dq);
  run_blocks(attention_finish_dq<T, D>, Grid(dq.steps, p.heads, p.batch), 256, 0, stream, p, dq);
}
template <class T>
void launch_backward_sm90(const AttentionBackwardArgs& a, const Tensor& scratch, cudaStream_t stream) {
  const auto p = problem_of_backward<T, float>(a, scratch);
  run_blocks(attention_delta<T, float>, Grid(ceil_div(int64_t(p.batch) * p.heads * p.seq, 4)), 128, 0, stream,
             p);
  if (widest(a) <= 64) return launch_backward_sm90<T, 64>(p, scratch, stream);
  widest(a) <= 96 ? launch_backward_sm90<T, 96>(p, scratch, stream)
                  : launch_backward_sm90<T, 128>(p, scratch, stream);
}

}  // namespace

bool attention_on_sm90(const AttentionBackwardArgs& a, const Tensor& scratch, const CudaContext& ctx,
                       cudaStream_t stream) {
  bool fits = wants_sm90(ctx, a) && widest(a) <= kWidestBackward && a.q.numel() > 0;
  for (const Tensor* t : {&a.q, &a.k, &a.v, &a.dout}) fits = fits && can_be_mapped(*t);
  for (const Tensor* t : {&a.dq, &a.dk, &a.dv}) fits = fits && in_chunks(*t);
  if (!fits) return false;
  tell_kernel(ctx, kSm90Kernel);
  a.q.dtype == DType::bf16 ? launch_backward_sm90<bf16>(a, scratch, stream)
                           : launch_backward_sm90<f16>(a, scratch, stream);
  return true;
}

}  // namespace trireme::cuda
