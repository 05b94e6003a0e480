// What a warp does together on tensor cores (sm_80 and up): m16n8k16 products of bf16 or f16 with f32 sums,
// loads of their operands from shared memory, copies from memory to shared memory that do not wait.
//
// Fragments (PTX ISA, "Matrix fragments for mma.m16n8k16"), lane = 4 g + t:
//   a[0] (row g,     columns 2t, 2t+1)   a[2] (row g,     columns 2t+8, 2t+9)
//   a[1] (row g + 8, columns 2t, 2t+1)   a[3] (row g + 8, columns 2t+8, 2t+9)
//   b[0] (rows 2t, 2t+1, column g)       b[1] (rows 2t+8, 2t+9, column g)
//   c[0], c[1] (row g, columns 2t, 2t+1) c[2], c[3] (row g + 8, columns 2t, 2t+1)
#pragma once
#if !defined(__CUDACC__)
#include <deque>
#include <vector>
#endif

#include "device/cuda/values.cuh"

namespace trireme::cuda {

// Two elements in a register, the first in its lower half.
template <class T>
__device__ __forceinline__ uint32_t pair_of(float low, float high) {
  return uint32_t(narrow<T>(low).bits) | uint32_t(narrow<T>(high).bits) << 16;
}

#if defined(__CUDACC__)

// c += a b
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bf16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, f16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices: lane 8 j + i names row i of matrix j, 16 bytes, so aligned. r[j]: of matrix j row g,
// columns 2t, 2t+1; transposed: rows 2t, 2t+1 of column g.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* row) {
  const auto at = unsigned(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], const void* row) {
  const auto at = unsigned(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

// 16 bytes to shared memory, zeros where not `there`; both aligned. Done when wait_copies says so, seen by
// others after a barrier.
__device__ __forceinline__ void copy16(void* shared, const void* global, bool there) {
  const auto to = unsigned(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(to), "l"(global), "r"(there ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void end_copies() {  // of a group
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>  // groups that may still be under way
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// The compiler moves nothing that makes these behind this.
template <int kA, int kB>
__device__ __forceinline__ void pin_pairs(uint32_t (&a)[kA][kB][4]) {
#pragma unroll
  for (int i = 0; i < kA; i++)
#pragma unroll
    for (int j = 0; j < kB; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) asm volatile("" : "+r"(a[i][j][e]));
}

#else

template <int kA, int kB>
void pin_pairs(uint32_t (&)[kA][kB][4]) {}

// Emulated: lanes lay their registers down, and each takes what the fragments say.
namespace emulated {
inline uint32_t registers[32][32][8];  // of warp, lane
inline Bytes16 rows[32][32];

inline float element(uint32_t pair, int half, bf16) {
  bf16 x;
  x.bits = uint16_t(pair >> 16 * half);
  return float(x);
}
inline float element(uint32_t pair, int half, f16) {
  f16 x;
  x.bits = uint16_t(pair >> 16 * half);
  return float(x);
}
inline void load(uint32_t (&r)[4], const void* row, bool transposed) {
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  rows[warp][lane] = load16(row);  // as it is when this lane comes: what lacks a barrier may not be there yet
  __syncwarp();
  for (int j = 0; j < 4; j++) {
    auto at = [&](int i, int c) { return uint16_t(rows[warp][8 * j + i].word[c / 2] >> 16 * (c % 2)); };
    const uint16_t low = transposed ? at(2 * t, g) : at(g, 2 * t);
    const uint16_t high = transposed ? at(2 * t + 1, g) : at(g, 2 * t + 1);
    r[j] = uint32_t(low) | uint32_t(high) << 16;
  }
  __syncwarp();
}
}  // namespace emulated

template <class T>
void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, T type) {
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  auto& all = emulated::registers[warp];
  for (int i = 0; i < 4; i++) all[lane][i] = a[i];
  all[lane][4] = b0, all[lane][5] = b1;
  __syncwarp();
  for (int k = 0; k < 16; k++) {
    const int quad = k % 8 / 2, half = k % 2, right = k / 8;
    for (int i = 0; i < 4; i++) {
      const uint32_t left = all[4 * g + quad][2 * right + i / 2];
      const uint32_t of_column = all[4 * (2 * t + i % 2) + quad][4 + right];
      c[i] += emulated::element(left, half, type) * emulated::element(of_column, half, type);
    }
  }
  __syncwarp();
}
inline void load_matrices(uint32_t (&r)[4], const void* row) {
  emulated::load(r, row, false);
}
inline void load_transposed(uint32_t (&r)[4], const void* row) {
  emulated::load(r, row, true);
}
// Nothing arrives before it is waited for, so that a wait that lacks shows.
namespace emulated {
struct Copy {
  void* to;
  const void* from;  // null: zeros
};
inline std::deque<std::vector<Copy>> groups[1024];  // of thread, oldest first; the last one is open
inline auto& of_thread() {
  auto& all = groups[threadIdx.x];
  if (all.empty()) all.emplace_back();
  return all;
}
}  // namespace emulated
inline void copy16(void* shared, const void* global, bool there) {
  emulate::require_aligned(shared, 16);
  if (there) emulate::require_aligned(global, 16);
  emulated::of_thread().back().push_back({shared, there ? global : nullptr});
}
inline void end_copies() {
  emulated::of_thread().emplace_back();
}
template <int kPending>
void wait_copies() {
  auto& all = emulated::of_thread();
  for (; all.size() > kPending + 1; all.pop_front())
    for (const auto& c : all.front()) store16(c.to, c.from ? load16(c.from) : Bytes16{});
}

#endif

}  // namespace trireme::cuda
