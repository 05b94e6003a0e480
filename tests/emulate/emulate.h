// CUDA's words on a processor: kernels of src/device/cuda are compiled as they are by a host compiler, and
// run here.
//
// Blocks run one after another, threads of a block as fibers on one stack each, switched at barriers and
// shuffles alone. A seed shuffles the order of blocks and threads: bits that depend on it are a race or a
// missing barrier. Found and thrown: threads that wait at different barriers, a lane that is missing from a
// shuffle, a barrier that some threads never reach, vector loads from odd addresses, more shared memory than
// was asked for.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#include "base/error.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) alignas(n)
#define __grid_constant__

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
extern dim3 threadIdx, blockIdx, blockDim, gridDim;  // of the fiber that runs

namespace trireme::emulate {

// The order of what runs from now on; 0: ascending.
void set_order(uint64_t seed);
// Runs `thread` as every thread of every block. Errors of the kernel's making are thrown here.
void run(dim3 grid, unsigned threads, int64_t shared, const std::function<void()>& thread);
void allow_shared(int64_t bytes);
std::byte* dynamic_shared();

void set_bytes(void*, int value, int64_t bytes);
void copy_bytes(void* dst, const void* src, int64_t bytes);
void require_aligned(const void*, uintptr_t bytes);

void block_barrier();

// The thread goes on when f() is true.
void wait_until(const std::function<bool()>& f);
// The same, but it returns false when no thread of the block can run. The clock has then advanced by 3 s.
bool wait_a_while(const std::function<bool()>& f);
uint32_t clock_ns();  // the GPU's, lower 32 bits
struct Trapped {};    // run() throws it when a thread has trapped
[[noreturn]] void trap();
// What a unit beside the threads does (a copy, a product): at once, at some time, or when no thread can go
// on, as the order has it. A block must not end before it is done.
void later(std::function<void()> job);
void at_end(std::function<void()> check);  // is called when the block has ended
uint64_t blocks_begun();                   // so far: who keeps something of a block forgets it with the next
// Addresses in shared memory's own space of 32 bits, of dynamic shared memory.
uint32_t shared_address(const void*);
std::byte* shared_at(uint32_t address, int64_t bytes);
// What a thread writes, units beside the threads (products, bulk copies) may read when the thread has fenced
// it.
void written_by_thread(uint32_t address, int64_t bytes);
void fence_async();
const std::byte* seen_by_copies(uint32_t address, int64_t bytes);

// Every lane of the warp puts 8 bytes and gets those of lane `from` once all have put theirs.
uint64_t exchange(uint64_t own, unsigned from);
unsigned ballot(bool);

template <class V>
V shuffle(V own, unsigned from) {
  static_assert(sizeof(V) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &own, sizeof own);
  bits = exchange(bits, from);
  V out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

inline void require_all_lanes(unsigned mask) {
  require(mask == ~0u, "the emulation knows warps whose lanes all take part");
}

}  // namespace trireme::emulate

inline void __syncthreads() {
  trireme::emulate::block_barrier();
}
inline void __syncwarp(unsigned mask = ~0u) {
  trireme::emulate::require_all_lanes(mask);
  trireme::emulate::exchange(0, 0);
}
template <class V>
V __shfl_sync(unsigned mask, V v, int from) {
  trireme::emulate::require_all_lanes(mask);
  return trireme::emulate::shuffle(v, unsigned(from) % 32);
}
template <class V>
V __shfl_xor_sync(unsigned mask, V v, int bits) {
  trireme::emulate::require_all_lanes(mask);
  return trireme::emulate::shuffle(v, (threadIdx.x % 32) ^ unsigned(bits));
}
template <class V>
V __shfl_down_sync(unsigned mask, V v, unsigned by) {
  trireme::emulate::require_all_lanes(mask);
  const unsigned lane = threadIdx.x % 32;
  return trireme::emulate::shuffle(v, lane + by < 32 ? lane + by : lane);
}
template <class V>
V __shfl_up_sync(unsigned mask, V v, unsigned by) {
  trireme::emulate::require_all_lanes(mask);
  const unsigned lane = threadIdx.x % 32;
  return trireme::emulate::shuffle(v, lane >= by ? lane - by : lane);
}
inline unsigned __ballot_sync(unsigned mask, bool set) {
  trireme::emulate::require_all_lanes(mask);
  return trireme::emulate::ballot(set);
}
inline bool __any_sync(unsigned mask, bool set) {
  return __ballot_sync(mask, set) != 0;
}
inline bool __all_sync(unsigned mask, bool set) {
  return __ballot_sync(mask, set) == ~0u;
}
inline int __popc(unsigned bits) {
  return std::popcount(bits);
}

// Fibers are switched at barriers alone, so a read and a write are one step.
template <class V>
V atomicAdd(V* at, V by) {
  const V before = *at;
  *at = before + by;
  return before;
}
template <class V>
V atomicMin(V* at, V other) {
  const V before = *at;
  *at = std::min(before, other);
  return before;
}
template <class V>
V atomicMax(V* at, V other) {
  const V before = *at;
  *at = std::max(before, other);
  return before;
}
