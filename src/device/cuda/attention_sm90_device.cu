// FlashAttention for Hopper (2407.08608, sections 3.1 and 3.2), forward, bf16 and f16: the maths of
// attention_mma.cuh on wgmma, tiles brought by TMA. sm_90a alone. HAS NOT RUN: it compiles, and what it finds
// where is checked on a processor (attention_sm90.h); nobody takes it but by CudaContext::sm90_attention.
//
//   S = scale Q K^T; m' = max(m, rowmax S); P = 2^(S - m'); l' = 2^(m - m') l + rowsum P;
//   O <- 2^(m - m') O + P V;   in the end O / l and L = m + log l          (S, m in units of log 2)
//
// q [B,S,H,D]; k [B,Sk,KV,D]; v [B,Sk,KV,DV]; o [B,S,H,DV], all T; lse [B,H,S] f32. D, DV <= 128 and
// multiples of 8: columns up to 64 or 128 arrive as zeros. Who sees whom: AttentionProblem (causal,
// documents, groups).
//
// Block (query block, head, sequence): 128 queries, three warpgroups.
//   producer    one thread starts copies of Q, then of K and V by 128 keys into two stages, each with a
//   barrier
//               that counts its bytes; keeps 24 registers a thread
//   consumers   two, 64 queries each, 240 registers a thread: S of the next keys (wgmma m64n128k16, both
//               operands in shared memory) is started before P V of the last (m64nDk16, P in registers), so
//               that a consumer's softmax runs while its own P V does; and the two take turns at starting
//               products (named barriers 1, 2), so that one's softmax runs while the other multiplies
// A stage is given back by all 8 warps of consumers, K's when S is there, V's when P V is.
//
// Barriers' phases, swizzle, descriptors: attention_sm90.h. Shared memory: 5 tiles of 128 x D x 2 B (160 KiB
// at D = 128). Bytes from memory, a block: (128 + 2 x keys seen) x D x 2; FLOPs: 4 D a pair of query and key
// that is computed (whole blocks of 128 x 128 along the diagonal). Sums f32, in ascending order of keys, 16
// at a time: the same bits every time, but not attention_mma.cuh's, whose blocks of keys are of 64.
#include <cuda.h>

#include "device/cuda/attention.h"
#include "device/cuda/attention_mma.cuh"
#include "device/cuda/attention_sm90.h"

namespace trireme::cuda {
namespace {

using namespace sm90;

constexpr int kGroupThreads = 128, kBlockThreads = 3 * kGroupThreads, kConsumerWarps = 8;
constexpr int kTiles = kKeys / 8;  // of a row of scores

// ---- barriers in shared memory (PTX ISA, "mbarrier") ----

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return uint32_t(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void init_barrier(uint64_t& b, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&b)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive(uint64_t& b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&b)) : "memory");
}
// Arrives, and the phase lasts until so many bytes have come too.
__device__ __forceinline__ void arrive_expecting(uint64_t& b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&b)), "r"(bytes)
               : "memory");
}
// Until the barrier has left the phase.
__device__ __forceinline__ void wait_for(uint64_t& b, uint32_t phase) {
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(&b)), "r"(phase)
        : "memory");
}
// Named barriers of both consumers: whose turn it is to start products.
__device__ __forceinline__ void take_turn(int consumer) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + consumer), "n"(2 * kGroupThreads) : "memory");
}
__device__ __forceinline__ void give_turn(int consumer) {
  asm volatile("bar.arrive %0, %1;" ::"r"(1 + consumer), "n"(2 * kGroupThreads) : "memory");
}

// ---- copies ----

// A box of 64 columns and 128 rows of head h, sequence b, into a panel; what is not there becomes 0.
__device__ __forceinline__ void copy_panel(uint32_t to, const CUtensorMap& map, uint64_t& barrier, int column,
                                           int h, int row, int b) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(&map), "r"(shared_address(&barrier)), "r"(column), "r"(h), "r"(row), "r"(b)
      : "memory");
}
template <int D>
__device__ __forceinline__ void copy_rows(uint32_t to, const CUtensorMap& map, uint64_t& barrier, int h,
                                          int row, int b) {
  arrive_expecting(barrier, tile_bytes(D));
#pragma unroll
  for (int panel = 0; panel < panels(D); panel++)
    copy_panel(to + uint32_t(panel * kPanelBytes), map, barrier, panel * kPanelColumns, h, row, b);
}

// ---- products (PTX ISA, "wgmma") ----

__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void end_products() {  // of a group
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>  // groups that may still be under way
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// The compiler does not know that products write registers later: nothing that it moves crosses this.
template <int n>
__device__ __forceinline__ void pin(float (&c)[n][4]) {
#pragma unroll
  for (int i = 0; i < n; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) asm volatile("" : "+f"(c[i][e])::"memory");
}

#define TRIREME_SUMS1(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define TRIREME_SUMS4(c, i) \
  TRIREME_SUMS1(c, i), TRIREME_SUMS1(c, i + 1), TRIREME_SUMS1(c, i + 2), TRIREME_SUMS1(c, i + 3)
#define TRIREME_SUMS8(c) TRIREME_SUMS4(c, 0), TRIREME_SUMS4(c, 4)
#define TRIREME_SUMS16(c) TRIREME_SUMS8(c), TRIREME_SUMS4(c, 8), TRIREME_SUMS4(c, 12)
#define TRIREME_NAMES32                                                             \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21," \
  "%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
#define TRIREME_NAMES64                                                              \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,"  \
  "%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41," \
  "%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61," \
  "%62,%63}, "

// c (+)= 64 rows of a, in shared memory, times b, 16 columns of both: fresh = false adds.
#define TRIREME_SCORES(T, name)                                                                       \
  __device__ __forceinline__ void multiply(float(&c)[16][4], uint64_t a, uint64_t b, bool fresh, T) { \
    asm volatile(                                                                                     \
        "{ .reg .pred p; setp.eq.u32 p, %66, 0; "                                                     \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." name "." name " " TRIREME_NAMES64              \
        "%64, %65, p, 1, 1, 0, 0; }"                                                                  \
        : TRIREME_SUMS16(c)                                                                           \
        : "l"(a), "l"(b), "r"(uint32_t(fresh)));                                                      \
  }
// c += a, in registers, times b, 16 rows of it in shared memory; of 128 and of 64 columns.
#define TRIREME_VALUES(T, name)                                                                      \
  __device__ __forceinline__ void multiply(float(&c)[16][4], const uint32_t(&a)[4], uint64_t b, T) { \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." name "." name " " TRIREME_NAMES64    \
                 "{%64,%65,%66,%67}, %68, 1, 1, 1, 1;"                                               \
                 : TRIREME_SUMS16(c)                                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                              \
  }                                                                                                  \
  __device__ __forceinline__ void multiply(float(&c)[8][4], const uint32_t(&a)[4], uint64_t b, T) {  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " " TRIREME_NAMES32     \
                 "{%32,%33,%34,%35}, %36, 1, 1, 1, 1;"                                               \
                 : TRIREME_SUMS8(c)                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                              \
  }
TRIREME_SCORES(bf16, "bf16")
TRIREME_SCORES(f16, "f16")
TRIREME_VALUES(bf16, "bf16")
TRIREME_VALUES(f16, "f16")

// S of 64 queries, from row `row` of q's tile on, and 128 keys: started.
template <class T, int D>
__device__ __forceinline__ void start_scores(float (&s)[kTiles][4], uint32_t q, int row, uint32_t k) {
#pragma unroll
  for (int step = 0; step < D / 16; step++)
    multiply(s, summed_columns(q, row, step), summed_columns(k, 0, step), step == 0, T());
  end_products();
}
// O += P V: started.
template <class T, int D>
__device__ __forceinline__ void start_values(float (&o)[D / 8][4], const uint32_t (&prob)[kKeys / 16][4],
                                             uint32_t v) {
#pragma unroll
  for (int step = 0; step < kKeys / 16; step++) multiply(o, prob[step], summed_rows(v, step), T());
  end_products();
}

// ---- the kernel ----

struct Barriers {
  uint64_t q, k_full[kStages], v_full[kStages], k_empty[kStages], v_empty[kStages];
};

template <class T, int D>
__device__ __forceinline__ void produce(const CUtensorMap& q, const CUtensorMap& k, const CUtensorMap& v,
                                        Barriers& barriers, uint32_t shared, int q0, int h, int kv, int b,
                                        int from, int n) {
  if (n == 0) return;
  copy_rows<D>(shared + q_at(D), q, barriers.q, h, q0, b);
  for (int i = 0; i < n; i++) {
    const int stage = stage_of(i), row = from + i * kKeys;
    wait_for(barriers.k_empty[stage], empty_phase(i));
    copy_rows<D>(shared + uint32_t(k_at(D, stage)), k, barriers.k_full[stage], kv, row, b);
    wait_for(barriers.v_empty[stage], empty_phase(i));
    copy_rows<D>(shared + uint32_t(v_at(D, stage)), v, barriers.v_full[stage], kv, row, b);
  }
}

// Two rows' running maxima and sums (g and g + 8 of the warp's 16), and what they see.
template <class T>
struct Softmax {
  float most[2] = {kNoScore, kNoScore}, sum[2] = {0, 0};  // sum: of this lane's columns
  int begin[2] = {0, 0}, end[2] = {0, 0}, all_to = 0;  // keys below all_to are seen by all rows, if any are
  bool documents = false;
  float scale = 0;

  __device__ __forceinline__ Softmax(const AttentionProblem<T, float>& p, int b, int first, int row)
      : documents(p.first != nullptr), scale(p.scale * kLog2E) {
    all_to = p.end_of(first);
#pragma unroll
    for (int half = 0; half < 2; half++)
      if (row + 8 * half < p.seq)
        begin[half] = p.begin_of(b, row + 8 * half), end[half] = p.end_of(row + 8 * half);
  }
  // Scores of keys k0.. to probabilities; keep: what sums of before are multiplied with.
  __device__ __forceinline__ void step(float (&s)[kTiles][4], int k0, float (&keep)[2]) {
    const int t = int(threadIdx.x) % 4;
    const bool all_seen = !documents && k0 + kKeys <= all_to;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float largest = most[half];
#pragma unroll
      for (int n = 0; n < kTiles; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int key = k0 + 8 * n + 2 * t + e;
          float& x = s[n][2 * half + e];
          x = all_seen || (key >= begin[half] && key < end[half]) ? x * scale : -HUGE_VALF;
          largest = fmaxf(largest, x);
        }
      largest = quad_max(largest);
      keep[half] = exp2f(most[half] - largest);
      float added = 0;
#pragma unroll
      for (int n = 0; n < kTiles; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float& x = s[n][2 * half + e];
          x = exp2f(x - largest);
          added += x;
        }
      sum[half] = sum[half] * keep[half] + added;
      most[half] = largest;
    }
  }
};

template <class T>
__device__ __forceinline__ void round_probabilities(uint32_t (&prob)[kKeys / 16][4],
                                                    const float (&s)[kTiles][4]) {
#pragma unroll
  for (int i = 0; i < kKeys / 16; i++) {
    prob[i][0] = pair_of<T>(s[2 * i][0], s[2 * i][1]);
    prob[i][1] = pair_of<T>(s[2 * i][2], s[2 * i][3]);
    prob[i][2] = pair_of<T>(s[2 * i + 1][0], s[2 * i + 1][1]);
    prob[i][3] = pair_of<T>(s[2 * i + 1][2], s[2 * i + 1][3]);
  }
}

template <class T, int D>
__device__ __forceinline__ void consume(const AttentionProblem<T, float>& p, Barriers& barriers,
                                        uint32_t shared, int consumer, int q0, int h, int b, int from,
                                        int n) {
  const int thread = int(threadIdx.x) % kGroupThreads, lane = thread % 32;
  const int row = q0 + 64 * consumer + thread / 32 * 16 + lane / 4;
  const uint32_t q = shared + q_at(D);
  auto k = [&](int i) { return shared + uint32_t(k_at(D, stage_of(i))); };
  auto v = [&](int i) { return shared + uint32_t(v_at(D, stage_of(i))); };
  auto give_back = [&](uint64_t& barrier) {
    if (lane == 0) arrive(barrier);
  };
  Softmax<T> softmax(p, b, q0 + 64 * consumer, row);
  float s[kTiles][4], o[D / 8][4], keep[2];
  uint32_t prob[kKeys / 16][4];
#pragma unroll
  for (int i = 0; i < D / 8; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) o[i][e] = 0;

  if (n > 0) {
    wait_for(barriers.q, 0);
    wait_for(barriers.k_full[0], full_phase(0));
    pin(s);
    begin_products();
    start_scores<T, D>(s, q, 64 * consumer, k(0));
    wait_products<0>();
    pin(s);
    give_back(barriers.k_empty[0]);
    softmax.step(s, from, keep);  // o is 0: nothing to keep
    round_probabilities<T>(prob, s);
    if (gives_first_turn(consumer, n)) give_turn(1 - consumer);
  }
  for (int i = 1; i < n; i++) {
    wait_for(barriers.k_full[stage_of(i)], full_phase(i));
    wait_for(barriers.v_full[stage_of(i - 1)], full_phase(i - 1));
    take_turn(consumer);
    pin(s), pin(o);
    begin_products();
    start_scores<T, D>(s, q, 64 * consumer, k(i));
    start_values<T, D>(o, prob, v(i - 1));
    if (gives_turn(consumer, i, n)) give_turn(1 - consumer);
    wait_products<1>();
    pin(s);
    give_back(barriers.k_empty[stage_of(i)]);
    softmax.step(s, from + i * kKeys, keep);
    wait_products<0>();
    pin(o);
    give_back(barriers.v_empty[stage_of(i - 1)]);
#pragma unroll
    for (int d = 0; d < D / 8; d++)
#pragma unroll
      for (int e = 0; e < 4; e++) o[d][e] *= keep[e / 2];
    round_probabilities<T>(prob, s);
  }
  if (n > 0) {
    wait_for(barriers.v_full[stage_of(n - 1)], full_phase(n - 1));
    pin(o);
    begin_products();
    start_values<T, D>(o, prob, v(n - 1));
    wait_products<0>();
    pin(o);
  }

  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float all = quad_sum(softmax.sum[half]);
    inverse[half] = all > 0 ? 1 / all : 0;
    if (lane % 4 == 0 && row + 8 * half < p.seq)
      *p.lse_at(b, h, row + 8 * half) = all > 0 ? kLn2 * softmax.most[half] + logf(all) : -HUGE_VALF;
  }
  store_sums<T, D / 8>(p.out, o, inverse, b, row, h, p.seq, 0, p.v_dim);
}

template <class T, int D>
__global__ void __launch_bounds__(kBlockThreads, 1)
    attention_forward_sm90(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                           const __grid_constant__ CUtensorMap v,
                           const __grid_constant__ AttentionProblem<T, float> p) {
  __shared__ Barriers barriers;
  const uint32_t shared = (shared_address(dynamic_shared<char>()) + 1023) & ~1023u;
  const int b = int(blockIdx.z), h = int(blockIdx.y), q0 = int(gridDim.x - 1 - blockIdx.x) * kQueries;
  const int rows = p.seq - q0 < kQueries ? p.seq - q0 : kQueries;
  const int from = p.begin_of_rows(b, q0, rows) / kKeys * kKeys;
  const int n = steps(from, p.end_of(q0 + rows - 1));
  if (threadIdx.x == 0) {
    init_barrier(barriers.q, 1);
    for (int stage = 0; stage < kStages; stage++) {
      init_barrier(barriers.k_full[stage], 1), init_barrier(barriers.v_full[stage], 1);
      init_barrier(barriers.k_empty[stage], kConsumerWarps);
      init_barrier(barriers.v_empty[stage], kConsumerWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  const int group = int(threadIdx.x) / kGroupThreads;
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 0) produce<T, D>(q, k, v, barriers, shared, q0, h, p.kv_head(h), b, from, n);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    consume<T, D>(p, barriers, shared, group - 1, q0, h, b, from, n);
  }
}

// ---- launches ----

// The driver's function, by the run-time library: a program without a driver starts all the same.
decltype(&cuTensorMapEncodeTiled) map_encoder() {
  static const auto encode = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    TRIREME_CUDA_CALL(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess || !f)
      run_failed("CUDA: the driver has no cuTensorMapEncodeTiled, which copies by TMA need");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(f);
  }();
  return encode;
}
// Of [B, rows, heads, columns] as boxes of 64 columns and 128 rows of a head.
template <class T>
CUtensorMap map_of(const AttentionRows<const T>& t, int batch, int rows, int heads, int columns) {
  const cuuint64_t dims[4] = {cuuint64_t(columns), cuuint64_t(heads), cuuint64_t(rows), cuuint64_t(batch)};
  // A dim of one element is never walked, and may have any stride that is one.
  auto bytes = [&](int64_t stride, int size) {
    return cuuint64_t(size > 1 ? stride * int64_t(sizeof(T)) : round_up(columns * int64_t(sizeof(T)), 16));
  };
  const cuuint64_t strides[3] = {bytes(t.head, heads), bytes(t.row, rows), bytes(t.batch, batch)};
  const cuuint32_t box[4] = {kPanelColumns, 1, kKeys, 1}, step[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult r = map_encoder()(
      &map, dtype_of<T> == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      4, const_cast<T*>(t.data), dims, strides, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS)
    run_failed("CUDA: cuTensorMapEncodeTiled failed with {} for rows of {} x {} x {} x {}", int(r), batch,
               rows, heads, columns);
  return map;
}

template <class T, int D>
void launch(const AttentionProblem<T, float>& p, cudaStream_t stream) {
  const CUtensorMap q = map_of(p.q, p.batch, p.seq, p.heads, p.dim),
                    k = map_of(p.k, p.batch, p.keys, p.kv_heads, p.dim),
                    v = map_of(p.v, p.batch, p.keys, p.kv_heads, p.v_dim);
  allow_shared(attention_forward_sm90<T, D>, shared_bytes(D));
  run_blocks(attention_forward_sm90<T, D>, Grid(ceil_div(p.seq, kQueries), p.heads, p.batch), kBlockThreads,
             shared_bytes(D), stream, q, k, v, p);
}
template <class T>
void launch(const AttentionArgs& a, cudaStream_t stream) {
  const auto p = problem_of_forward<T, float>(a);
  widest(a) <= 64 ? launch<T, 64>(p, stream) : launch<T, 128>(p, stream);
}

// Strides that a tensor map can say.
bool can_be_mapped(const Tensor& t) {
  bool ok = in_chunks(t);
  for (int d = 0; d < 3; d++)
    ok &= t.shape[d] <= 1 || (t.stride[size_t(d)] > 0 && t.stride[size_t(d)] < 1ll << 38);
  return ok;
}

}  // namespace

bool attention_on_sm90(const AttentionArgs& a, const CudaContext& ctx, cudaStream_t stream) {
  const bool fits = ctx.sm90_attention && ctx.major == 9 && size_of(a.q.dtype) == 2 && widest(a) <= 128 &&
                    a.o.dtype == a.q.dtype && !a.accumulate && !a.dropout && a.k.shape[1] > 0 &&
                    can_be_mapped(a.q) && can_be_mapped(a.k) && can_be_mapped(a.v) && in_chunks(a.o);
  if (!fits) return false;
  a.q.dtype == DType::bf16 ? launch<bf16>(a, stream) : launch<f16>(a, stream);
  return true;
}

}  // namespace trireme::cuda
