// Sums and maxima of the same elements of ranks that share the GPU: what rank threads' reductions are made of
// (device_memory.h). Bound by memory: every source is read once and every destination written once; a thread
// keeps its eight elements in registers between, so that destinations may be sources.
//
// Terms are added in the sources' order and rounded once, as cpu/sum_pieces.h says: the CPU's bits.
#include "device/cuda/launches.h"
#include "device/cuda/numbers.cuh"

namespace trireme::cuda {
namespace {

constexpr int kFoldThreads = 256;

struct FoldedPieces {
  std::byte* dst[kMostFolded];
  const std::byte* src[kMostFolded];
  int dsts, srcs;
  // Elements before the first whole chunk, and whether chunks are 16-byte aligned from there on, everywhere.
  int head;
  bool whole;
};

// What sums are made in: f32, f64 for f64; of integers the unsigned type, which wraps.
template <class T>
struct FoldedIn {
  using Acc = float;
  static __device__ __forceinline__ float widened(T x) { return widen(x); }
  static __device__ __forceinline__ T narrowed(float x) { return narrow<T>(x); }
  static __device__ __forceinline__ float larger(float a, float b) { return b > a || b != b ? b : a; }
};
template <>
struct FoldedIn<double> {
  using Acc = double;
  static __device__ __forceinline__ double widened(double x) { return x; }
  static __device__ __forceinline__ double narrowed(double x) { return x; }
  static __device__ __forceinline__ double larger(double a, double b) { return b > a || b != b ? b : a; }
};
template <class I, class U>
struct FoldedIntegers {
  using Acc = U;
  static __device__ __forceinline__ U widened(I x) { return U(x); }
  static __device__ __forceinline__ I narrowed(U x) { return I(x); }
  static __device__ __forceinline__ U larger(U a, U b) { return I(b) > I(a) ? b : a; }
};
template <>
struct FoldedIn<int32_t> : FoldedIntegers<int32_t, uint32_t> {};
template <>
struct FoldedIn<int64_t> : FoldedIntegers<int64_t, uint64_t> {};

// Chunk 0 is the head, chunk i > 0 the eight elements from head + 8 (i - 1) on.
template <class T, bool kMax>
__global__ void __launch_bounds__(kFoldThreads) fold_chunks(FoldedPieces p, int64_t n) {
  using In = FoldedIn<T>;
  const int64_t i = int64_t(blockIdx.x) * kFoldThreads + threadIdx.x;
  const int64_t begin = i == 0 ? 0 : p.head + (i - 1) * kChunk, left = n - begin;
  const int most = i == 0 ? p.head : kChunk;
  const int count = int(left < most ? left : most);
  if (count <= 0) return;
  const bool whole = p.whole && i > 0;
  T raw[kChunk];
  typename In::Acc sum[kChunk];
  load8(reinterpret_cast<const T*>(p.src[0]) + begin, whole, count, raw);
#pragma unroll
  for (int k = 0; k < kChunk; k++) sum[k] = In::widened(raw[k]);
  for (int s = 1; s < p.srcs; s++) {
    load8(reinterpret_cast<const T*>(p.src[s]) + begin, whole, count, raw);
#pragma unroll
    for (int k = 0; k < kChunk; k++)
      sum[k] = kMax ? In::larger(sum[k], In::widened(raw[k])) : sum[k] + In::widened(raw[k]);
  }
#pragma unroll
  for (int k = 0; k < kChunk; k++) raw[k] = In::narrowed(sum[k]);
  for (int d = 0; d < p.dsts; d++) store8(raw, reinterpret_cast<T*>(p.dst[d]) + begin, whole, count);
}

template <class T>
void fold_as(FoldedPieces p, int64_t n, bool max, cudaStream_t stream) {
  const uintptr_t off = reinterpret_cast<uintptr_t>(p.src[0]) % 16;
  p.whole = off % sizeof(T) == 0;
  for (int s = 0; s < p.srcs; s++) p.whole = p.whole && reinterpret_cast<uintptr_t>(p.src[s]) % 16 == off;
  for (int d = 0; d < p.dsts; d++) p.whole = p.whole && reinterpret_cast<uintptr_t>(p.dst[d]) % 16 == off;
  p.head = p.whole ? int((16 - off) % 16 / sizeof(T)) : 0;
  const int64_t after = n > p.head ? n - p.head : 0;
  run_blocks(max ? fold_chunks<T, true> : fold_chunks<T, false>,
             ceil_div(1 + ceil_div(after, kChunk), kFoldThreads), kFoldThreads, 0, stream, p, n);
}

}  // namespace

void fold_pieces(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n, DType t,
                 bool max, cudaStream_t stream) {
  require(!src.empty() && !dst.empty(), "a reduction of no pieces, or to nowhere");
  require(src.size() <= kMostFolded && dst.size() <= kMostFolded, "more pieces than one launch folds");
  FoldedPieces p{};
  p.dsts = int(dst.size()), p.srcs = int(src.size());
  for (size_t d = 0; d < dst.size(); d++) p.dst[d] = dst[d];
  for (size_t s = 0; s < src.size(); s++) p.src[s] = src[s];
  switch (t) {
    case DType::f64:
      return fold_as<double>(p, n, max, stream);
    case DType::i32:
      return fold_as<int32_t>(p, n, max, stream);
    case DType::i64:
      return fold_as<int64_t>(p, n, max, stream);
    default:
      by_type(t, [&]<class T>(T) { fold_as<T>(p, n, max, stream); });
  }
}

}  // namespace trireme::cuda
