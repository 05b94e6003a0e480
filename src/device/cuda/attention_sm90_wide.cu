// FlashAttention for Hopper, backward, heads of more than 128 columns: the maths of
// attention_sm90_backward.cu, dealt to two consumers in another way, for dK and dV of 128 keys do not fit
// their registers. sm_90a alone. HAS NOT RUN ON A GPU: on a processor it runs as it is by emulation
// (tests/emulate/emulate_sm90.h); nobody takes it but by CudaContext::sm90_attention.
//
// q, dq [B,S,H,D]; k, dk [B,Sk,KV,D]; v, dv [B,Sk,KV,DV]; dout [B,S,H,DV], T (gradients T or f32); lse
// [B,H,S] f32. (D, DV) up to (192, 128), as multi-head latent attention has them, or (256, 256); multiples of
// 8. Who sees whom: AttentionProblem.
//
// Block (key block, kv head, sequence), by tickets: 64 keys, all heads that share them and all queries that
// see them, 64 a step. Three warpgroups:
//   producer    one warp: K and V once, then Q with L, D and documents of a step into two stages, dO into
//               two or, where both have 256 columns, one: it has barriers of its own
//   writer      one thread, as there: 3 or 4 pieces of dQ a step
//   consumers   each computes S^T and dP^T of half of a step's queries (m64n32k16) and stores P^T and dS^T,
//               rounded, to shared memory. Then the first multiplies dV += P^T dO, the second dK += dS^T Q
//               (m64nDk16, all operands in shared memory), and both their panels of dQ = dS K (m64n64k16,
//               both operands turned): two panels each of four; of three the first has two, for its DV
//               columns are fewer. A panel is multiplied before dV or dK, and copied out while that goes on.
//
// Shared memory: 64 x (D + DV) and 128 x (D + DV), or 128 x D + 64 x DV, of 2 B, 2 x 64 x 64 of 2 B, 32 KiB
// of dQ: 168 KiB at (192, 128), 208 KiB at 256. FLOPs: 6 D + 4 DV a pair of query and key that is computed
// (whole tiles of 64 x 64 along the diagonal); bytes: a step reads 64 (D + DV) x 2 B and adds 64 D x 4 B to
// sums that the L2 cache holds. Sums f32, every one a chain of a fixed order: the same bits every time,
// whatever the timing.
#include "device/cuda/attention_sm90_backward.cuh"

namespace trireme::cuda {
namespace {

using namespace sm90;

struct WideBarriers {
  uint64_t kv, q_full[kStages], q_empty[kStages], dout_full[kStages], dout_empty[kStages];
  PieceBarriers pieces;
};

// dO of step i lies in stage i modulo so many.
template <int kDoutStages>
struct DoutStage {
  static constexpr int of(int i) { return i % kDoutStages; }
  static constexpr uint32_t full_phase(int i) { return uint32_t(i / kDoutStages % 2); }
  static constexpr uint32_t empty_phase(int i) { return full_phase(i) ^ 1; }
};

// One warp.
template <class T, int D, int DV>
__device__ __forceinline__ void produce_wide(const TileMap& q, const TileMap& k, const TileMap& v,
                                             const TileMap& dout, const AttentionProblem<T, float>& p,
                                             WideBarriers& barriers, Queries* queries, uint32_t shared, int n,
                                             int kv, int b) {
  constexpr HeadWidths kWidths{D, DV};
  constexpr WideTiles kAt(kWidths);
  constexpr int R = rows_of(kWidths), kKeys = block_keys(kWidths);
  using Dout = DoutStage<kAt.dout_stages>;
  const int lane = int(threadIdx.x) % 32;
  if (lane == 0) {
    arrive_expecting(barriers.kv, tile_bytes(kKeys, D) + tile_bytes(kKeys, DV));
    copy_tiles<kKeys, D>(shared + uint32_t(kAt.k), k, barriers.kv, kv, n * kKeys, b);
    copy_tiles<kKeys, DV>(shared + uint32_t(kAt.v), v, barriers.kv, kv, n * kKeys, b);
  }
  int i = 0;
  const auto least = [&](int q0, int rows) { return least_of_rows(p, b, q0, rows); };
  each_step<R, kKeys>(p, n, kv, least, [&](int h, int q0, int rows, const KeyBlocks& blocks) {
    const int stage = stage_of(i);
    wait_for<spin_name("q_empty")>(barriers.q_empty[stage], empty_phase(i));
    if (lane == 0) {  // before what the warp loads itself, which waits for memory several times
      expect(barriers.q_full[stage], tile_bytes(R, D));
      copy_tiles<R, D>(shared + uint32_t(kAt.q + stage * kAt.q_stage), q, barriers.q_full[stage], h, q0, b);
    }
    put_queries<R>(queries[stage], p, b, h, q0, rows, blocks.before(n));
    arrive(barriers.q_full[stage]);
    if (lane == 0) {
      uint64_t& full = barriers.dout_full[Dout::of(i)];
      wait_for<spin_name("do_empty")>(barriers.dout_empty[Dout::of(i)], Dout::empty_phase(i));
      arrive_expecting(full, tile_bytes(R, DV));
      copy_tiles<R, DV>(shared + uint32_t(kAt.dout + Dout::of(i) * kAt.dout_stage), dout, full, h, q0, b);
    }
    i++;
  });
  wait_for<spin_name("q_empty")>(barriers.q_empty[stage_of(i)], empty_phase(i));
  if (lane == 0) queries[stage_of(i)].q0 = -1;
  arrive(barriers.q_full[stage_of(i)]);
}

// kConsumer 0 has dV, 1 dK.
template <class T, int D, int DV, bool kDrops, int kConsumer>
__device__ __forceinline__ void consume_wide(const AttentionProblem<T, float>& p, const DqSums& dq,
                                             WideBarriers& barriers, const Queries* queries, Piece* to,
                                             uint32_t shared, int n, int kv, int b) {
  constexpr HeadWidths kWidths{D, DV};
  constexpr WideTiles kAt(kWidths);
  constexpr int R = rows_of(kWidths), kKeys = block_keys(kWidths), kTiles = R / 2 / 8;
  constexpr int kColumns = kConsumer == 0 ? DV : D, kFirst = R / 2 * kConsumer;
  using Dout = DoutStage<kAt.dout_stages>;
  const int thread = int(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;
  const int key = n * kKeys + 16 * warp + lane / 4;
  const uint32_t k = shared + uint32_t(kAt.k), v = shared + uint32_t(kAt.v), prob = shared + uint32_t(kAt.p),
                 ds = shared + uint32_t(kAt.ds),
                 staged = shared + uint32_t(kAt.piece + kConsumer * kPieceBytes);
  const float scale = p.scale * kLog2E;
  float own[kColumns / 8][4], s[kTiles][4], dp[kTiles][4], sums[8][4];
  uint32_t pairs[R / 2 / 16][4];
#pragma unroll
  for (int i = 0; i < kColumns / 8; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) own[i][e] = 0;

  uint32_t given = 0;  // pieces
  const auto next_piece = [&] {
    wait_for<spin_name("p_empty")>(barriers.pieces.empty[kConsumer], given++ % 2 ^ 1);
  };
  const auto give = [&](int64_t step, int before) {
    next_piece();
#pragma unroll
    for (int j = 0; j < 8; j++) put_floats(staged + uint32_t((128 * j + thread) * 16), sums[j]);
    if (thread == 0) to[kConsumer] = {step, before};
    fence_async();
    arrive(barriers.pieces.full[kConsumer]);
  };
  const auto start_piece = [&](int number) {  // of dQ
#pragma unroll
    for (int step = 0; step < kKeys / 16; step++)
      multiply<true, true>(sums, summed_rows(ds, kKeys, 0, step),
                           summed_rows(k, kKeys, piece_panel(kWidths, number), step), step == 0, T());
    end_products();
  };
  // Half of the queries, as they lie in registers, to a tile of keys x queries.
  const auto store_half = [&](uint32_t tile, const float(&of)[kTiles][4]) {
    round_pairs<T>(pairs, of);
#pragma unroll
    for (int step = 0; step < R / 2 / 16; step++)
      store_matrices(
          chunk_at(tile, kKeys, 16 * warp + lane / 8 % 2 * 8 + lane % 8, kFirst / 8 + 2 * step + lane / 16),
          pairs[step]);
  };

  wait_for<spin_name("kv")>(barriers.kv, 0);
  for (int i = 0;; i++) {
    const int stage = stage_of(i);
    wait_for<spin_name("q_full")>(barriers.q_full[stage], full_phase(i));
    const Queries& now = queries[stage];
    const int q0 = now.q0, h = now.head, before = now.before;
    if (q0 < 0) break;
    const uint32_t q = shared + uint32_t(kAt.q + stage * kAt.q_stage),
                   dout = shared + uint32_t(kAt.dout + Dout::of(i) * kAt.dout_stage);
    pin(s);
    begin_products();
#pragma unroll
    for (int step = 0; step < D / 16; step++)
      multiply<false, false>(s, summed_columns(k, kKeys, 0, step), summed_columns(q, R, kFirst, step),
                             step == 0, T());
    end_products();
    wait_for<spin_name("do_full")>(barriers.dout_full[Dout::of(i)], Dout::full_phase(i));
    pin(dp);
    begin_products();
#pragma unroll
    for (int step = 0; step < DV / 16; step++)
      multiply<false, false>(dp, summed_columns(v, kKeys, 0, step), summed_columns(dout, R, kFirst, step),
                             step == 0, T());
    end_products();
    wait_products<1>();
    pin(s);
    const bool all_seen =
        !p.first && (n + 1) * kKeys <= p.keys && (!p.causal || q0 + p.offset + 1 >= int64_t(n + 1) * kKeys);
    probabilities(s, now, kFirst, all_seen, key, scale);
    pin(s);
    wait_for<spin_name("do_full")>(barriers.dout_full[Dout::of(i)],
                                   Dout::full_phase(i));  // again: as in attention_sm90.cu
    wait_products<0>();
    pin(dp);
    gradients_of_scores<kDrops>(s, dp, p, now, kFirst, b, h, q0, key);
    meet(1, kBackwardConsumers);  // both have read P^T and dS^T of the step before
    store_half(prob, s), store_half(ds, dp);
    fence_async();
    meet(2, kBackwardConsumers);  // both have written them
    pin(own), pin(sums);
    begin_products();
    start_piece(kConsumer);
#pragma unroll
    for (int step = 0; step < R / 16; step++)
      multiply<false, true>(own, summed_columns(kConsumer == 0 ? prob : ds, kKeys, 0, step),
                            summed_rows(kConsumer == 0 ? dout : q, R, 0, step), false, T());
    end_products();
    wait_products<1>();
    pin(sums);
    const int64_t at = dq.step_of(b, p.heads, h, q0, R);
    give(at, before);
    if constexpr (kConsumer + 2 < pieces(kWidths)) {
      pin(sums);
      begin_products();
      start_piece(kConsumer + 2);
      wait_products<0>();
      pin(sums), pin(own);
      give(at, before);
    } else {
      wait_products<0>();
      pin(own);
    }
    if (lane == 0) arrive(barriers.q_empty[stage]), arrive(barriers.dout_empty[Dout::of(i)]);
  }
  next_piece();
  if (thread == 0) to[kConsumer].step = -1;
  arrive(barriers.pieces.full[kConsumer]);

  const float by_scale[2] = {p.scale, p.scale}, whole[2] = {1, 1};
  if constexpr (kConsumer == 0)
    store_sums<T, DV / 8>(p.dv, own, whole, b, key, kv, p.keys, 0, p.v_dim);
  else
    store_sums<T, D / 8>(p.dk, own, by_scale, b, key, kv, p.keys, 0, p.dim);
}

template <class T, int D, int DV, bool kDrops>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    attention_backward_wide(const __grid_constant__ TileMap q, const __grid_constant__ TileMap k,
                            const __grid_constant__ TileMap v, const __grid_constant__ TileMap dout,
                            const __grid_constant__ AttentionProblem<T, float> p,
                            const __grid_constant__ DqSums dq) {
  __shared__ WideBarriers barriers;
  __shared__ Queries queries[kStages];
  __shared__ Piece to[2];
  __shared__ int own_ticket;
  constexpr HeadWidths kWidths{D, DV};
  constexpr WideTiles kAt(kWidths);
  const uint32_t shared = (shared_address(dynamic_shared<char>()) + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    init_barrier(barriers.kv, 1);
    for (int stage = 0; stage < kStages; stage++) {
      init_barrier(barriers.q_full[stage], 32), init_barrier(barriers.q_empty[stage], kBackwardWarps);
      init_barrier(barriers.dout_full[stage], 1), init_barrier(barriers.dout_empty[stage], kBackwardWarps);
    }
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
    if (warp == 0) produce_wide<T, D, DV>(q, k, v, dout, p, barriers, queries, shared, n, kv, b);
    if (threadIdx.x == 32)
      write_pieces<pieces(kWidths)>(dq, barriers.pieces, to, shared + uint32_t(kAt.piece));
  } else {
    take_registers<240>();
    if (group == 1)
      consume_wide<T, D, DV, kDrops, 0>(p, dq, barriers, queries, to, shared, n, kv, b);
    else
      consume_wide<T, D, DV, kDrops, 1>(p, dq, barriers, queries, to, shared, n, kv, b);
  }
}

template <class T, int D, int DV>
void launch_wide(const AttentionProblem<T, float>& p, const Tensor& scratch, cudaStream_t stream) {
  constexpr HeadWidths kWidths{D, DV};
  constexpr int R = rows_of(kWidths), kKeys = block_keys(kWidths), kBytes = WideTiles(kWidths).bytes;
  const TileMap q = map_of(tiles_of(p.q, p.batch, p.seq, p.heads, p.dim), R),
                k = map_of(tiles_of(p.k, p.batch, p.keys, p.kv_heads, p.dim), kKeys),
                v = map_of(tiles_of(p.v, p.batch, p.keys, p.kv_heads, p.v_dim), kKeys),
                dout = map_of(tiles_of(p.dout, p.batch, p.seq, p.heads, p.v_dim), R);
  const DqSums dq = dq_sums(p, scratch, kWidths, stream);
  const auto kernel =
      p.mask.on ? attention_backward_wide<T, D, DV, true> : attention_backward_wide<T, D, DV, false>;
  allow_shared(kernel, kBytes);
  run_blocks(kernel, Grid(ceil_div(p.keys, kKeys) * p.kv_heads * p.batch), kBackwardThreads, kBytes, stream,
             q, k, v, dout, p, dq);
  finish_dq<D, DV>(p, dq, stream);
}
template <class T>
void launch_of_width(const AttentionProblem<T, float>& p, const Tensor& scratch, cudaStream_t stream) {
  by_widths(p.dim, p.v_dim, [&](auto d, auto v) {
    if constexpr (wide({d(), v()})) launch_wide<T, d(), v()>(p, scratch, stream);
  });
}

}  // namespace

void launch_wide_backward(const AttentionProblem<bf16, float>& p, const Tensor& scratch,
                          cudaStream_t stream) {
  launch_of_width(p, scratch, stream);
}
void launch_wide_backward(const AttentionProblem<f16, float>& p, const Tensor& scratch, cudaStream_t stream) {
  launch_of_width(p, scratch, stream);
}

void report_wide_spins(SpinReport* to) {
  set_spin_report(spin_report, to);
}

}  // namespace trireme::cuda
