// What a warpgroup, four warps, does on Hopper (sm_90a): products of tiles in shared memory by wgmma, copies
// of tiles by TMA, barriers in shared memory that count arrivals and bytes. PTX, and under another compiler
// what emulates it (tests/emulate/emulate_sm90.h).
//
// Sums of a product m64nNk16: warp w of the group holds rows 16 w.., as warp_mma.cuh's fragments: c[j] is
// (rows g, g + 8; columns 8 j + 2 t, + 1). A left operand in registers: a warp's 16 rows as a fragment a.
// Tiles and descriptors: attention_sm90.h.
#pragma once
#if defined(__CUDACC__)
#include <cuda.h>
#else
#include <emulate_sm90.h>
#endif

#include "device/cuda/spins.cuh"
#include "device/cuda/warp_mma.cuh"

namespace trireme::cuda {

#if defined(__CUDACC__)

using TileMap = CUtensorMap;

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return uint32_t(__cvta_generic_to_shared(p));
}

// The same in all lanes, as the compiler cannot see of threadIdx: what follows of it stays in uniform
// registers.
__device__ __forceinline__ int warp_uniform(int v) {
  return __shfl_sync(~0u, v, 0);
}

// ---- barriers in shared memory (PTX ISA, "mbarrier") ----

__device__ __forceinline__ void init_barrier(uint64_t& b, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&b)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void show_barriers() {  // to copies, after they were made
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(uint64_t& b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&b)) : "memory");
}
// Arrives, and the phase lasts until so many bytes have come too.
__device__ __forceinline__ void arrive_expecting(uint64_t& b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&b)), "r"(bytes)
               : "memory");
}
// The phase lasts until so many bytes have come too; who says so arrives later.
__device__ __forceinline__ void expect(uint64_t& b, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&b)),
               "r"(bytes)
               : "memory");
}
// Waits until the barrier has left the phase. name: spin_name, for a report (spins.h).
template <uint64_t name>
__device__ __forceinline__ void wait_for(uint64_t& b, uint32_t phase) {
  spin_at_barrier<name>(shared_address(&b), phase);
}
// Named barriers: comes and waits until so many threads have come; comes and goes on.
__device__ __forceinline__ void meet(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void pass_by(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// What threads wrote to shared memory may be read by products and bulk copies.
__device__ __forceinline__ void fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Bulk copies' reads and writes of global memory are ordered with what this thread sees of others. In a loop
// of many threads this costs: all of a multiprocessor's writes must have arrived.
__device__ __forceinline__ void fence_async_memory() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
template <int n>
__device__ __forceinline__ void keep_registers() {  // gives those beyond n back
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}

// ---- copies ----

// A box of 64 columns of head h, sequence b, from `row` on; what is not there becomes 0.
__device__ __forceinline__ void copy_box(uint32_t to, const TileMap& map, uint64_t& barrier, int column,
                                         int h, int row, int b) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(&map), "r"(shared_address(&barrier)), "r"(column), "r"(h), "r"(row), "r"(b)
      : "memory");
}

// 16 bytes to shared memory, and four 8 x 8 matrices whose rows lanes 8 j + i name (matrix j, row i), from
// registers as fragments have them.
__device__ __forceinline__ void put_floats(uint32_t to, const float (&v)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
               : "memory");
}
__device__ __forceinline__ void store_matrices(uint32_t row, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
// Bulk copies of a thread: floats from shared memory to memory, added there or stored; 16-byte aligned.
__device__ __forceinline__ void add_out(float* to, uint32_t from, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void store_out(float* to, uint32_t from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void end_out() {  // of a group
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void wait_out_read() {  // what they read may be written again
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void wait_out() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
// Counts in memory that blocks wait for: what was written before a count was raised is seen after waiting.
__device__ __forceinline__ void wait_count(const int* at, int n) {
  spin_at_count<kCountName>(at, n);
}
__device__ __forceinline__ void raise_count(int* at) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(at) : "memory");
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
// Left operands too: what they are made of is there before begin_products, and they stay what they are until
// the products have been waited for.
template <int n>
__device__ __forceinline__ void pin(uint32_t (&a)[n][4]) {
#pragma unroll
  for (int i = 0; i < n; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) asm volatile("" : "+r"(a[i][e])::"memory");
}

#define TRIREME_SUMS1(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define TRIREME_SUMS4(c, i) \
  TRIREME_SUMS1(c, i), TRIREME_SUMS1(c, i + 1), TRIREME_SUMS1(c, i + 2), TRIREME_SUMS1(c, i + 3)
#define TRIREME_SUMS8(c, i) TRIREME_SUMS4(c, i), TRIREME_SUMS4(c, i + 4)
#define TRIREME_SUMS16(c, i) TRIREME_SUMS8(c, i), TRIREME_SUMS8(c, i + 8)
#define TRIREME_NAMES16 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define TRIREME_NAMES32                                                             \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21," \
  "%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define TRIREME_NAMES48 TRIREME_NAMES32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define TRIREME_NAMES64 TRIREME_NAMES48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define TRIREME_NAMES96                                                                                   \
  TRIREME_NAMES64                                                                                         \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88," \
  "%89,%90,%91,%92,%93,%94,%95"
#define TRIREME_NAMES128                                                                                  \
  TRIREME_NAMES64                                                                                         \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88," \
  "%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,"   \
  "%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// c (+)= a b, both in shared memory, 16 columns of a; fresh: c is not added to. kTurned: the summed dim is
// the tile's rows, else its columns.
#define TRIREME_BOTH_SHARED(T, name, n, names, sums, a_at, b_at, fresh_at, turn_a, turn_b)               \
  template <bool kTurnedA, bool kTurnedB>                                                                \
  __device__ __forceinline__ void multiply(float(&c)[n / 8][4], uint64_t a, uint64_t b, bool fresh, T) { \
    asm volatile("{ .reg .pred p; setp.eq.u32 p, " fresh_at                                              \
                 ", 0; "                                                                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." name "." name " " names "}, " a_at    \
                 ", " b_at ", p, 1, 1, " turn_a ", " turn_b "; }"                                        \
                 : sums                                                                                  \
                 : "l"(a), "l"(b), "r"(uint32_t(fresh)), "n"(int(kTurnedA)), "n"(int(kTurnedB)));        \
  }
// c += a b, a in registers.
#define TRIREME_LEFT_IN_REGISTERS(T, name, n, names, sums, a0, a1, a2, a3, b_at, turn_b)                    \
  template <bool kTurnedB>                                                                                  \
  __device__ __forceinline__ void multiply(float(&c)[n / 8][4], const uint32_t(&a)[4], uint64_t b, T) {     \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." name "." name " " names "}, {" a0 "," a1 \
                 "," a2 "," a3 "}, " b_at ", 1, 1, 1, " turn_b ";"                                          \
                 : sums                                                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(int(kTurnedB)));                 \
  }
#define TRIREME_ALL_PRODUCTS(T, name)                                                                        \
  TRIREME_BOTH_SHARED(T, name, 32, TRIREME_NAMES16, TRIREME_SUMS4(c, 0), "%16", "%17", "%18", "%19", "%20")  \
  TRIREME_BOTH_SHARED(T, name, 64, TRIREME_NAMES32, TRIREME_SUMS8(c, 0), "%32", "%33", "%34", "%35", "%36")  \
  TRIREME_BOTH_SHARED(T, name, 128, TRIREME_NAMES64, TRIREME_SUMS16(c, 0), "%64", "%65", "%66", "%67",       \
                      "%68")                                                                                 \
  TRIREME_BOTH_SHARED(T, name, 192, TRIREME_NAMES96,                                                         \
                      TRIREME_SUMS16(c, 0) TRIREME_COMMA TRIREME_SUMS8(c, 16), "%96", "%97", "%98", "%99",   \
                      "%100")                                                                                \
  TRIREME_BOTH_SHARED(T, name, 256, TRIREME_NAMES128,                                                        \
                      TRIREME_SUMS16(c, 0) TRIREME_COMMA TRIREME_SUMS16(c, 16), "%128", "%129", "%130",      \
                      "%131", "%132")                                                                        \
  TRIREME_LEFT_IN_REGISTERS(T, name, 64, TRIREME_NAMES32, TRIREME_SUMS8(c, 0), "%32", "%33", "%34", "%35",   \
                            "%36", "%37")                                                                    \
  TRIREME_LEFT_IN_REGISTERS(T, name, 96, TRIREME_NAMES48,                                                    \
                            TRIREME_SUMS8(c, 0) TRIREME_COMMA TRIREME_SUMS4(c, 8), "%48", "%49", "%50",      \
                            "%51", "%52", "%53")                                                             \
  TRIREME_LEFT_IN_REGISTERS(T, name, 128, TRIREME_NAMES64, TRIREME_SUMS16(c, 0), "%64", "%65", "%66", "%67", \
                            "%68", "%69")                                                                    \
  TRIREME_LEFT_IN_REGISTERS(T, name, 256, TRIREME_NAMES128,                                                  \
                            TRIREME_SUMS16(c, 0) TRIREME_COMMA TRIREME_SUMS16(c, 16), "%128", "%129",        \
                            "%130", "%131", "%132", "%133")
#define TRIREME_COMMA ,
TRIREME_ALL_PRODUCTS(bf16, "bf16")
TRIREME_ALL_PRODUCTS(f16, "f16")
#undef TRIREME_ALL_PRODUCTS
#undef TRIREME_COMMA
#undef TRIREME_LEFT_IN_REGISTERS
#undef TRIREME_BOTH_SHARED
#undef TRIREME_NAMES128
#undef TRIREME_NAMES96
#undef TRIREME_NAMES64
#undef TRIREME_NAMES48
#undef TRIREME_NAMES32
#undef TRIREME_NAMES16
#undef TRIREME_SUMS16
#undef TRIREME_SUMS8
#undef TRIREME_SUMS4
#undef TRIREME_SUMS1

#else

using emulate::arrive, emulate::arrive_expecting, emulate::begin_products, emulate::copy_box,
    emulate::end_products, emulate::expect, emulate::fence_async, emulate::init_barrier, emulate::meet,
    emulate::pass_by, emulate::shared_address, emulate::show_barriers, emulate::TileMap;

// A barrier is static there, and has no address in dynamic shared memory.
template <uint64_t name>
void wait_for(uint64_t& b, uint32_t phase) {
  spin([&] { return emulate::has_left(b, phase); }, name, uint32_t(reinterpret_cast<uintptr_t>(&b) & 0xffff),
       phase);
}
inline void fence_async_memory() {}  // memory is one here
inline int warp_uniform(int v) {
  return __shfl_sync(~0u, v, 0);
}

inline void put_floats(uint32_t to, const float (&v)[4]) {
  require(to % 16 == 0, "a vector store at an odd address");
  std::memcpy(emulate::shared_at(to, 16), v, 16);
  emulate::written_by_thread(to, 16);
}
inline void store_matrices(uint32_t row, const uint32_t (&r)[4]) {
  require(row % 16 == 0, "a matrix's row at an odd address");
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  for (int j = 0; j < 4; j++) emulated::registers[warp][lane][j] = r[j];
  __syncwarp();
  for (int t = 0; t < 4; t++)
    std::memcpy(emulate::shared_at(row + uint32_t(4 * t), 4),
                &emulated::registers[warp][lane % 8 * 4 + t][lane / 8], 4);
  emulate::written_by_thread(row, 16);
  __syncwarp();
}
inline void add_out(float* to, uint32_t from, int bytes) {
  emulate::bulk_out(to, from, bytes, true);
}
inline void store_out(float* to, uint32_t from, int bytes) {
  emulate::bulk_out(to, from, bytes, false);
}
inline void end_out() {
  emulate::end_bulk();
}
inline void wait_out_read() {
  emulate::wait_bulk(0, true);
}
inline void wait_out() {
  emulate::wait_bulk(0, false);
}
inline void wait_count(const int* at, int n) {
  spin([=] { return emulate::wait_a_while([=] { return *at == n; }); }, kCountName,
       uint32_t(reinterpret_cast<uintptr_t>(at)), uint32_t(n));
}
inline void raise_count(int* at) {
  atomicAdd(at, 1);
}
template <int n>
void keep_registers() {}
template <int n>
void take_registers() {}
template <int kPending>
void wait_products() {
  emulate::wait_products(kPending);
}
template <int n>
void pin(float (&)[n][4]) {}
template <int n>
void pin(uint32_t (&a)[n][4]) {
  for (auto& fragment : a) emulate::pin_left(fragment);
}
template <bool kTurnedA, bool kTurnedB, int n, class T>
void multiply(float (&c)[n][4], uint64_t a, uint64_t b, bool fresh, T) {
  emulate::multiply({.columns = 8 * n,
                     .fresh = fresh,
                     .left_turned = kTurnedA,
                     .right_turned = kTurnedB,
                     .f16 = std::is_same_v<T, f16>,
                     .left = a,
                     .right = b},
                    &c[0][0], nullptr);
}
template <bool kTurnedB, int n, class T>
void multiply(float (&c)[n][4], const uint32_t (&a)[4], uint64_t b, T) {
  emulate::multiply({.columns = 8 * n,
                     .left_in_registers = true,
                     .right_turned = kTurnedB,
                     .f16 = std::is_same_v<T, f16>,
                     .right = b},
                    &c[0][0], a);
}

#endif

// [B, rows, heads, columns] of T in memory; strides in elements.
template <class T>
struct TileSource {
  const T* data = nullptr;
  int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
  int batch = 0, rows = 0, heads = 0, columns = 0;
};
// What a tensor map says of it: dims from the innermost on, strides in bytes of all but that.
struct TileLayout {
  uint64_t dims[4], strides[3];
  uint32_t box[4];
};
// As boxes of 64 columns and box_rows rows of a head.
template <class T>
TileLayout layout_of(const TileSource<T>& t, int box_rows) {
  // A dim of one element is never walked, and may have any stride that is one.
  const auto bytes = [&](int64_t stride, int size) {
    return uint64_t(size > 1 ? stride * int64_t(sizeof(T)) : round_up(t.columns * int64_t(sizeof(T)), 16));
  };
  return {{uint64_t(t.columns), uint64_t(t.heads), uint64_t(t.rows), uint64_t(t.batch)},
          {bytes(t.head_stride, t.heads), bytes(t.row_stride, t.rows), bytes(t.batch_stride, t.batch)},
          {64, 1, uint32_t(box_rows), 1}};
}

#if defined(__CUDACC__)

// The driver's function, by the run-time library: a program without a driver starts all the same.
inline decltype(&cuTensorMapEncodeTiled) map_encoder() {
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
template <class T>
TileMap map_of(const TileSource<T>& t, int box_rows) {
  const TileLayout layout = layout_of(t, box_rows);
  const cuuint32_t step[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult r = map_encoder()(
      &map, dtype_of<T> == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      4, const_cast<T*>(t.data), layout.dims, layout.strides, layout.box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS)
    run_failed("CUDA: cuTensorMapEncodeTiled failed with {} for rows of {} x {} x {} x {}", int(r), t.batch,
               t.rows, t.heads, t.columns);
  return map;
}

#else

template <class T>
TileMap map_of(const TileSource<T>& t, int box_rows) {
  const TileLayout layout = layout_of(t, box_rows);
  return emulate::tile_map(t.data, layout.dims, layout.strides, layout.box);
}

#endif

}  // namespace trireme::cuda
