// FlashAttention for Hopper (2407.08608, section 3; its appendix on the backward pass), backward, bf16 and
// f16, on wgmma and TMA. sm_90a alone. HAS NOT RUN ON A GPU: on a processor it runs as it is by emulation
// (tests/emulate/emulate_sm90.h); nobody takes it but by CudaContext::sm90_attention.
//
//   P = 2^(S - L), S = scale K Q^T; dP = V dO^T; dS = P o (dP - D), D = rowsum(dO o O) in scratch before;
//   dV += P^T dO; dK += scale dS^T Q; dQ += scale dS K            (S, L in units of log 2)
//
// q, dq [B,S,H,D]; k, dk [B,Sk,KV,D]; v, dv [B,Sk,KV,DV]; dout [B,S,H,DV], T (gradients T or f32); lse
// [B,H,S] f32. D, DV multiples of 8, here up to 128; up to 256: attention_sm90_wide.cu. Who sees whom:
// AttentionProblem.
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
#include "device/cuda/attention_sm90_backward.cuh"

namespace trireme::cuda {
namespace {

using namespace sm90;

struct BackwardBarriers {
  uint64_t kv, full[kStages], empty[kStages];
  PieceBarriers pieces;
};

// One warp.
template <class T, int D>
__device__ __forceinline__ void produce_steps(const TileMap& q, const TileMap& k, const TileMap& v,
                                              const TileMap& dout, const AttentionProblem<T, float>& p,
                                              BackwardBarriers& barriers, Queries* queries, uint32_t shared,
                                              int n, int kv, int b) {
  constexpr HeadWidths kWidths{D, D};
  constexpr NarrowTiles kAt(kWidths);
  constexpr int R = rows_of(kWidths), kKeys = block_keys(kWidths);
  const int lane = int(threadIdx.x) % 32;
  if (lane == 0) {
    arrive_expecting(barriers.kv, 2 * tile_bytes(kKeys, D));
    copy_tiles<kKeys, D>(shared + uint32_t(kAt.k), k, barriers.kv, kv, n * kKeys, b);
    copy_tiles<kKeys, D>(shared + uint32_t(kAt.v), v, barriers.kv, kv, n * kKeys, b);
  }
  int i = 0;
  const auto least = [&](int q0, int rows) { return least_of_rows(p, b, q0, rows); };
  each_step<R, kKeys>(p, n, kv, least, [&](int h, int q0, int rows, const KeyBlocks& blocks) {
    const int stage = stage_of(i);
    wait_for<spin_name("empty")>(barriers.empty[stage], empty_phase(i));
    if (lane == 0) {  // before what the warp loads itself, which waits for memory several times
      const uint32_t at = shared + uint32_t(stage * kAt.stage);
      expect(barriers.full[stage], 2 * tile_bytes(R, D));
      copy_tiles<R, D>(at + uint32_t(kAt.q), q, barriers.full[stage], h, q0, b);
      copy_tiles<R, D>(at + uint32_t(kAt.dout), dout, barriers.full[stage], h, q0, b);
    }
    put_queries<R>(queries[stage], p, b, h, q0, rows, blocks.before(n));
    arrive(barriers.full[stage]);
    i++;
  });
  wait_for<spin_name("empty")>(barriers.empty[stage_of(i)], empty_phase(i));
  if (lane == 0) queries[stage_of(i)].q0 = -1;
  arrive(barriers.full[stage_of(i)]);
}

template <class T, int D, bool kDrops>
__device__ __forceinline__ void consume_steps(const AttentionProblem<T, float>& p, const DqSums& dq,
                                              BackwardBarriers& barriers, const Queries* queries,
                                              Piece* pieces, uint32_t shared, int consumer, int n, int kv,
                                              int b) {
  constexpr HeadWidths kWidths{D, D};
  constexpr NarrowTiles kAt(kWidths);
  constexpr int R = rows_of(kWidths), kKeys = block_keys(kWidths), kTiles = R / 8;
  const int thread = int(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;
  const int own_row = 64 * consumer + 16 * warp, key = n * kKeys + own_row + lane / 4;
  const uint32_t k = shared + uint32_t(kAt.k), v = shared + uint32_t(kAt.v), ds = shared + uint32_t(kAt.ds),
                 staged = shared + uint32_t(kAt.piece + consumer * kPieceBytes);
  const float scale = p.scale * kLog2E;
  float dk[D / 8][4], dv[D / 8][4], s[kTiles][4], dp[kTiles][4];
  uint32_t prob_pairs[R / 16][4], ds_pairs[R / 16][4];
#pragma unroll
  for (int i = 0; i < D / 8; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) dk[i][e] = 0, dv[i][e] = 0;

  wait_for<spin_name("kv")>(barriers.kv, 0);
  int i = 0;
  for (;; i++) {
    const int stage = stage_of(i);
    wait_for<spin_name("full")>(barriers.full[stage], full_phase(i));
    const Queries& now = queries[stage];
    const int q0 = now.q0, h = now.head;
    if (q0 < 0) break;
    const uint32_t q = shared + uint32_t(kAt.q + stage * kAt.stage),
                   dout = shared + uint32_t(kAt.dout + stage * kAt.stage);
    pin(s), pin(dp);
    begin_products();
#pragma unroll
    for (int step = 0; step < D / 16; step++)
      multiply<false, false>(s, summed_columns(k, kKeys, 64 * consumer, step), summed_columns(q, R, 0, step),
                             step == 0, T());
    end_products();
#pragma unroll
    for (int step = 0; step < D / 16; step++)
      multiply<false, false>(dp, summed_columns(v, kKeys, 64 * consumer, step),
                             summed_columns(dout, R, 0, step), step == 0, T());
    end_products();
    wait_products<1>();
    pin(s);
    const bool all_seen =
        !p.first && (n + 1) * kKeys <= p.keys && (!p.causal || q0 + p.offset + 1 >= int64_t(n + 1) * kKeys);
    probabilities(s, now, 0, all_seen, key, scale);
    wait_products<0>();
    pin(dp);
    gradients_of_scores<kDrops>(s, dp, p, now, 0, b, h, q0, key);
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
      store_matrices(chunk_at(ds, kKeys, own_row + lane / 8 % 2 * 8 + lane % 8, 2 * step + lane / 16),
                     ds_pairs[step]);
    fence_async();
    meet(2, kBackwardConsumers);  // both have written it
    float sums[8][4];
    pin(dk), pin(sums), pin(ds_pairs);
    begin_products();
#pragma unroll
    for (int step = 0; step < kKeys / 16; step++)
      multiply<true, true>(sums, summed_rows(ds, kKeys, piece_row(kWidths, consumer) / 64, step),
                           summed_rows(k, kKeys, piece_panel(kWidths, consumer), step), step == 0, T());
    end_products();
#pragma unroll
    for (int step = 0; step < R / 16; step++)
      multiply<true>(dk, ds_pairs[step], summed_rows(q, R, 0, step), T());
    end_products();
    wait_products<1>();
    pin(sums), pin(prob_pairs);
    const int before = now.before;
    wait_for<spin_name("p_empty")>(barriers.pieces.empty[consumer], uint32_t(i % 2 ^ 1));
#pragma unroll
    for (int j = 0; j < 8; j++) put_floats(staged + uint32_t((128 * j + thread) * 16), sums[j]);
    if (thread == 0) pieces[consumer] = {dq.step_of(b, p.heads, h, q0, R), before};
    fence_async();
    arrive(barriers.pieces.full[consumer]);
    wait_products<0>();
    pin(dv), pin(dk), pin(ds_pairs);
    if (lane == 0) arrive(barriers.empty[stage]);
  }
  wait_for<spin_name("p_empty")>(barriers.pieces.empty[consumer], uint32_t(i % 2 ^ 1));
  if (thread == 0) pieces[consumer].step = -1;
  arrive(barriers.pieces.full[consumer]);

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
      init_barrier(barriers.pieces.full[c], 128), init_barrier(barriers.pieces.empty[c], 1);
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
    if (threadIdx.x == 32)
      write_pieces<2>(dq, barriers.pieces, pieces, shared + uint32_t(NarrowTiles({D, D}).piece));
  } else {
    take_registers<240>();
    consume_steps<T, D, kDrops>(p, dq, barriers, queries, pieces, shared, group - 1, n, kv, b);
  }
}

template <class T, int D>
void launch_backward_sm90(const AttentionProblem<T, float>& p, const Tensor& scratch, cudaStream_t stream) {
  constexpr HeadWidths kWidths{D, D};
  constexpr int R = rows_of(kWidths), kKeys = block_keys(kWidths), kBytes = NarrowTiles(kWidths).bytes;
  const TileMap q = map_of(tiles_of(p.q, p.batch, p.seq, p.heads, p.dim), R),
                k = map_of(tiles_of(p.k, p.batch, p.keys, p.kv_heads, p.dim), kKeys),
                v = map_of(tiles_of(p.v, p.batch, p.keys, p.kv_heads, p.v_dim), kKeys),
                dout = map_of(tiles_of(p.dout, p.batch, p.seq, p.heads, p.v_dim), R);
  const DqSums dq = dq_sums(p, scratch, kWidths, stream);
  const auto kernel = p.mask.on ? attention_backward_sm90<T, D, true> : attention_backward_sm90<T, D, false>;
  allow_shared(kernel, kBytes);
  run_blocks(kernel, Grid(ceil_div(p.keys, kKeys) * p.kv_heads * p.batch), kBackwardThreads, kBytes, stream,
             q, k, v, dout, p, dq);
  finish_dq<D, D>(p, dq, stream);
}
template <class T>
void launch_backward_sm90(const AttentionBackwardArgs& a, const Tensor& scratch, cudaStream_t stream) {
  const auto p = problem_of_backward<T, float>(a, scratch);
  run_blocks(attention_delta<T, float>, Grid(ceil_div(int64_t(p.batch) * p.heads * p.seq, 4)), 128, 0, stream,
             p);
  by_widths(p.dim, p.v_dim, [&](auto d, auto v) {
    if constexpr (wide({d(), v()}))
      launch_wide_backward(p, scratch, stream);
    else
      launch_backward_sm90<T, d()>(p, scratch, stream);
  });
}

}  // namespace

bool attention_on_sm90(const AttentionBackwardArgs& a, const Tensor& scratch, const CudaContext& ctx,
                       cudaStream_t stream) {
  bool fits = wants_sm90(ctx, a) && a.q.numel() > 0;
  for (const Tensor* t : {&a.q, &a.k, &a.v, &a.dout}) fits = fits && can_be_mapped(*t);
  for (const Tensor* t : {&a.dq, &a.dk, &a.dv}) fits = fits && in_chunks(*t);
  if (!fits) return false;
  tell_kernel(ctx, kSm90Kernel);
  a.q.dtype == DType::bf16 ? launch_backward_sm90<bf16>(a, scratch, stream)
                           : launch_backward_sm90<f16>(a, scratch, stream);
  return true;
}

void report_backward_spins(SpinReport* to) {
  set_spin_report(spin_report, to);
}

}  // namespace trireme::cuda
