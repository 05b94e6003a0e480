// FlashAttention for Hopper (2407.08608, sections 3.1 and 3.2), forward, bf16 and f16: the maths of
// attention_mma.cuh on wgmma, tiles brought by TMA. sm_90a alone. HAS NOT RUN ON A GPU: on a processor it
// runs as it is by emulation (tests/emulate/emulate_sm90.h); nobody takes it but by
// CudaContext::sm90_attention.
//
//   S = scale Q K^T; m' = max(m, rowmax S); P = 2^(S - m'); l' = 2^(m - m') l + rowsum P;
//   O <- 2^(m - m') O + P V;   in the end O / l and L = m + log l          (S, m in units of log 2)
//
// q [B,S,H,D]; k [B,Sk,KV,D]; v [B,Sk,KV,DV], all T; o [B,S,H,DV] T or f32; lse [B,H,S] f32. D, DV <= 256
// and multiples of 8: columns up to the panel's end arrive as zeros. Who sees whom: AttentionProblem (causal,
// documents, groups). Accumulation begins with what o and lse hold; dropout draws as everywhere.
//
// Block (query block, head, sequence): 128 queries, three warpgroups.
//   producer    one thread starts copies of Q, then of K and V by 128 keys (64 where DV > 128) into two
//               stages, each with a barrier that counts its bytes; keeps 24 registers a thread
//   consumers   two, 64 queries each, 240 registers a thread: S of the next keys (wgmma m64n128k16, both
//               operands in shared memory) is started before P V of the last (m64nDk16, P in registers), so
//               that a consumer's softmax runs while its own P V does; and the two take turns at starting
//               products (named barriers 1, 2), so that one's softmax runs while the other multiplies
// A stage is given back by all 8 warps of consumers, K's when S is there, V's when P V is.
//
// Barriers' phases, swizzle, descriptors: attention_sm90.h. Shared memory: 5 tiles of 128 x D x 2 B (160 KiB
// at D = 96 and 128), 208 KiB at D = 192 and DV = 128, 192 KiB at 256. Bytes from memory, a block: (128 + 2 x
// keys seen) x D x 2; FLOPs: 4 D a pair of query and key that is computed (whole blocks of 128 x 128 along
// the diagonal). Sums f32, in ascending order of keys, 16 at a time: the same bits every time, but not
// attention_mma.cuh's, whose blocks of keys are of 64.
#include "device/cuda/attention.h"
#include "device/cuda/attention_sm90.cuh"

namespace trireme::cuda {
namespace {

using namespace sm90;

constexpr int kGroupThreads = 128, kBlockThreads = 3 * kGroupThreads, kConsumerWarps = 8;

// Whose turn it is to start products: named barriers of both consumers.
__device__ __forceinline__ void take_turn(int consumer) {
  meet(1 + consumer, 2 * kGroupThreads);
}
__device__ __forceinline__ void give_turn(int consumer) {
  pass_by(1 + consumer, 2 * kGroupThreads);
}

// Rows [row, row + kRows) of head h into a tile.
template <int kRows, int D>
__device__ __forceinline__ void copy_rows(uint32_t to, const TileMap& map, uint64_t& barrier, int h, int row,
                                          int b) {
  arrive_expecting(barrier, tile_bytes(kRows, D));
#pragma unroll
  for (int panel = 0; panel < panels(D); panel++)
    copy_box(to + uint32_t(panel * panel_bytes(kRows)), map, barrier, panel * kPanelColumns, h, row, b);
}

// S of 64 queries, from row `row` of q's tile on, and the keys of a step: started.
template <class T, int D, int kTiles>
__device__ __forceinline__ void start_scores(float (&s)[kTiles][4], uint32_t q, int row, uint32_t k) {
#pragma unroll
  for (int step = 0; step < D / 16; step++)
    multiply<false, false>(s, summed_columns(q, kQueries, row, step), summed_columns(k, 8 * kTiles, 0, step),
                           step == 0, T());
  end_products();
}
// O += P V: started.
template <class T, int DV, int kSteps>
__device__ __forceinline__ void start_values(float (&o)[DV / 8][4], const uint32_t (&prob)[kSteps][4],
                                             uint32_t v) {
#pragma unroll
  for (int step = 0; step < kSteps; step++)
    multiply<true>(o, prob[step], summed_rows(v, 16 * kSteps, 0, step), T());
  end_products();
}

// ---- the kernel ----

struct Barriers {
  uint64_t q, k_full[kStages], v_full[kStages], k_empty[kStages], v_empty[kStages];
};

template <int D, int DV>
__device__ __forceinline__ void produce(const TileMap& q, const TileMap& k, const TileMap& v,
                                        Barriers& barriers, uint32_t shared, int q0, int h, int kv, int b,
                                        int from, int n) {
  constexpr HeadWidths kWidths{D, DV};
  constexpr int kKeys = keys_of(kWidths);
  if (n == 0) return;
  copy_rows<kQueries, D>(shared + q_at(), q, barriers.q, h, q0, b);
  for (int i = 0; i < n; i++) {
    const int stage = stage_of(i), row = from + i * kKeys;
    wait_for<spin_name("k_empty")>(barriers.k_empty[stage], empty_phase(i));
    copy_rows<kKeys, D>(shared + uint32_t(k_at(kWidths, stage)), k, barriers.k_full[stage], kv, row, b);
    wait_for<spin_name("v_empty")>(barriers.v_empty[stage], empty_phase(i));
    copy_rows<kKeys, DV>(shared + uint32_t(v_at(kWidths, stage)), v, barriers.v_full[stage], kv, row, b);
  }
}

// Two rows' running maxima and sums (g and g + 8 of the warp's 16), and what they see.
template <class T>
struct Softmax {
  float most[2] = {kNoScore, kNoScore}, sum[2] = {0, 0};  // sum: of this lane's columns
  SeenKeys seen[2];
  int all_to = 0;  // keys below are seen by all rows, if any are
  bool documents = false;
  float scale = 0;

  __device__ __forceinline__ Softmax(const AttentionProblem<T, float>& p, int b, int h, int first, int row)
      : documents(p.first != nullptr), scale(p.scale * kLog2E) {
    all_to = p.end_of(first);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (row + 8 * half >= p.seq) continue;
      seen[half] = SeenKeys(p.begin_of(b, row + 8 * half), p.end_of(row + 8 * half));
      const float before = p.accumulate ? *p.lse_at(b, h, row + 8 * half) : -HUGE_VALF;
      if (before != -HUGE_VALF) most[half] = before * kLog2E, sum[half] = threadIdx.x % 4 == 0 ? 1 : 0;
    }
  }
  // Did the row see something in the part of attention that this one is added to?
  __device__ __forceinline__ bool begun(int half) const {
    return most[half] != kNoScore;
  }
  // Scores of keys k0.. to probabilities; keep: what sums of before are multiplied with.
  template <int kTiles>
  __device__ __forceinline__ void step(float (&s)[kTiles][4], int k0, float (&keep)[2]) {
    if (documents || k0 + 8 * kTiles > all_to) {
#pragma unroll
      for (int n = 0; n < kTiles; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          seen[e / 2].hide(s[n][e], k0 + 8 * n + 2 * (int(threadIdx.x) % 4) + e % 2);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) keep[half] = probabilities_of(s, half, scale, most[half], sum[half]);
  }
};

// Drops out probabilities of rows `row` and row + 8 for the keys of a step.
template <class T, int kTiles>
__device__ __forceinline__ void drop_out(const AttentionProblem<T, float>& p, float (&s)[kTiles][4], int b,
                                         int h, int row, int k0) {
  const int t = int(threadIdx.x) % 4;
  const float factor = float(p.mask.scale);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const uint32_t kept = bits_of<2 * kTiles>(
        [&](int i) { return p.mask.keeps(b, h, row + 8 * half, k0 + i / 2 * 8 + 2 * t + i % 2); });
#pragma unroll
    for (int n = 0; n < kTiles; n++)
#pragma unroll
      for (int e = 0; e < 2; e++) s[n][2 * half + e] *= kept >> (2 * n + e) & 1 ? factor : 0.0f;
  }
}

template <class T, int D, int DV, bool kDrops>
__device__ __forceinline__ void consume(const AttentionProblem<T, float>& p, Barriers& barriers,
                                        uint32_t shared, int consumer, int q0, int h, int b, int from,
                                        int n) {
  constexpr HeadWidths kWidths{D, DV};
  constexpr int kKeys = keys_of(kWidths), kTiles = kKeys / 8;
  const int thread = int(threadIdx.x) % kGroupThreads, lane = thread % 32;
  const int row = q0 + 64 * consumer + thread / 32 * 16 + lane / 4;
  const uint32_t q = shared + q_at();
  auto k = [&](int i) { return shared + uint32_t(k_at(kWidths, stage_of(i))); };
  auto v = [&](int i) { return shared + uint32_t(v_at(kWidths, stage_of(i))); };
  auto give_back = [&](uint64_t& barrier) {
    if (lane == 0) arrive(barrier);
  };
  Softmax<T> softmax(p, b, h, q0 + 64 * consumer, row);
  float s[kTiles][4], o[DV / 8][4], keep[2];
  uint32_t prob[kKeys / 16][4];
#pragma unroll
  for (int i = 0; i < DV / 8; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) o[i][e] = 0;
  if (p.accumulate) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (!softmax.begun(half)) continue;
      const float* old = static_cast<const float*>(p.out.data) + p.out.at(b, row + 8 * half, h);
#pragma unroll
      for (int i = 0; i < DV / 8; i++)
#pragma unroll
        for (int e = 0; e < 2; e++)
          if (8 * i + 2 * (lane % 4) + e < p.v_dim) o[i][2 * half + e] = old[8 * i + 2 * (lane % 4) + e];
    }
  }
  auto rescale = [&] {
#pragma unroll
    for (int d = 0; d < DV / 8; d++)
#pragma unroll
      for (int e = 0; e < 4; e++) o[d][e] *= keep[e / 2];
  };

  if (n > 0) {
    wait_for<spin_name("q")>(barriers.q, 0);
    wait_for<spin_name("k_full")>(barriers.k_full[0], full_phase(0));
    pin(s);
    begin_products();
    start_scores<T, D>(s, q, 64 * consumer, k(0));
    wait_products<0>();
    pin(s);
    give_back(barriers.k_empty[0]);
    softmax.step(s, from, keep);
    if (p.accumulate) rescale();  // else o is 0
    if constexpr (kDrops) drop_out(p, s, b, h, row, from);
    round_pairs<T>(prob, s);
    if (gives_first_turn(consumer, n)) give_turn(1 - consumer);
  }
  for (int i = 1; i < n; i++) {
    wait_for<spin_name("k_full")>(barriers.k_full[stage_of(i)], full_phase(i));
    wait_for<spin_name("v_full")>(barriers.v_full[stage_of(i - 1)], full_phase(i - 1));
    take_turn(consumer);
    pin(s), pin(o), pin(prob);
    begin_products();
    start_scores<T, D>(s, q, 64 * consumer, k(i));
    start_values<T, DV>(o, prob, v(i - 1));
    if (gives_turn(consumer, i, n)) give_turn(1 - consumer);
    wait_products<1>();
    pin(s);
    give_back(barriers.k_empty[stage_of(i)]);
    softmax.step(s, from + i * kKeys, keep);
    if constexpr (kDrops) drop_out(p, s, b, h, row, from + i * kKeys);
    // The next product needs these values; that they are waited for here keeps the softmax before the wait
    // for the last one, where the compiler moved it behind: no basic block reaches over a loop.
    pin(s);
    wait_for<spin_name("v_full")>(barriers.v_full[stage_of(i)], full_phase(i));
    wait_products<0>();
    pin(o), pin(prob);
    give_back(barriers.v_empty[stage_of(i - 1)]);
    rescale();
    round_pairs<T>(prob, s);
  }
  if (n > 0) {
    wait_for<spin_name("v_full")>(barriers.v_full[stage_of(n - 1)], full_phase(n - 1));
    pin(o), pin(prob);
    begin_products();
    start_values<T, DV>(o, prob, v(n - 1));
    wait_products<0>();
    pin(o), pin(prob);
  }

  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float all = quad_sum(softmax.sum[half]);
    inverse[half] = all > 0 ? 1 / all : 0;
    if (lane % 4 == 0 && row + 8 * half < p.seq)
      *p.lse_at(b, h, row + 8 * half) = all > 0 ? kLn2 * softmax.most[half] + logf(all) : -HUGE_VALF;
  }
  store_sums<T, DV / 8>(p.out, o, inverse, b, row, h, p.seq, 0, p.v_dim);
}

template <class T, int D, int DV, bool kDrops>
__global__ void __launch_bounds__(kBlockThreads, 1)
    attention_forward_sm90(const __grid_constant__ TileMap q, const __grid_constant__ TileMap k,
                           const __grid_constant__ TileMap v,
                           const __grid_constant__ AttentionProblem<T, float> p) {
  constexpr int kKeys = keys_of({D, DV});
  __shared__ Barriers barriers;
  const uint32_t shared = (shared_address(dynamic_shared<char>()) + 1023) & ~1023u;
  const int b = int(blockIdx.z), h = int(blockIdx.y), q0 = int(gridDim.x - 1 - blockIdx.x) * kQueries;
  const int rows = p.seq - q0 < kQueries ? p.seq - q0 : kQueries;
  const int from = p.begin_of_rows(b, q0, rows) / kKeys * kKeys;
  const int n = steps(from, p.end_of(q0 + rows - 1), kKeys);
  if (threadIdx.x == 0) {
    init_barrier(barriers.q, 1);
    for (int stage = 0; stage < kStages; stage++) {
      init_barrier(barriers.k_full[stage], 1), init_barrier(barriers.v_full[stage], 1);
      init_barrier(barriers.k_empty[stage], kConsumerWarps);
      init_barrier(barriers.v_empty[stage], kConsumerWarps);
    }
    show_barriers();
    fence_async();
  }
  __syncthreads();
  const int group = warp_uniform(int(threadIdx.x) / kGroupThreads);
  if (group == 0) {
    keep_registers<24>();
    if (threadIdx.x == 0) produce<D, DV>(q, k, v, barriers, shared, q0, h, p.kv_head(h), b, from, n);
  } else {
    take_registers<240>();
    consume<T, D, DV, kDrops>(p, barriers, shared, group - 1, q0, h, b, from, n);
  }
}

// ---- launches ----

template <class T, int D, int DV>
void launch_sm90(const AttentionProblem<T, float>& p, cudaStream_t stream) {
  constexpr HeadWidths kWidths{D, DV};
  const TileMap q = map_of(tiles_of(p.q, p.batch, p.seq, p.heads, p.dim), kQueries),
                k = map_of(tiles_of(p.k, p.batch, p.keys, p.kv_heads, p.dim), keys_of(kWidths)),
                v = map_of(tiles_of(p.v, p.batch, p.keys, p.kv_heads, p.v_dim), keys_of(kWidths));
  // Draws of dropout have kernels of their own: with them in every one 128 columns took more registers than
  // there are.
  const auto kernel =
      p.mask.on ? attention_forward_sm90<T, D, DV, true> : attention_forward_sm90<T, D, DV, false>;
  allow_shared(kernel, shared_bytes(kWidths));
  run_blocks(kernel, Grid(ceil_div(p.seq, kQueries), p.heads, p.batch), kBlockThreads, shared_bytes(kWidths),
             stream, q, k, v, p);
}
template <class T>
void launch_sm90(const AttentionArgs& a, cudaStream_t stream) {
  const auto p = problem_of_forward<T, float>(a);
  by_widths(p.dim, p.v_dim, [&](auto d, auto v) { launch_sm90<T, d(), v()>(p, stream); });
}

}  // namespace

bool attention_on_sm90(const AttentionArgs& a, const CudaContext& ctx, cudaStream_t stream) {
  const bool fits =
      wants_sm90(ctx, a) && can_be_mapped(a.q) && can_be_mapped(a.k) && can_be_mapped(a.v) && in_chunks(a.o);
  if (!fits) return false;
  tell_kernel(ctx, kSm90Kernel);
  a.q.dtype == DType::bf16 ? launch_sm90<bf16>(a, stream) : launch_sm90<f16>(a, stream);
  return true;
}

void report_forward_spins(SpinReport* to) {
  set_spin_report(spin_report, to);
}

}  // namespace trireme::cuda
