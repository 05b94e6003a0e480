// quantise: 8-bit floats. Codes and scales are tensor/fp8.h's own functions, so they have the CPU's bits.
//
// The largest finite magnitude of each block, the scale that follows, one rounding a number. Largest are
// integers' atomic maxima (of floats' bits) or fixed trees: the same whatever the order.
//   one block that is all of x     a pass that looks, one thread that settles the scale, a pass that encodes
//   blocks of one column           a warp's lanes are columns, the block's 8 warps share a block's rows
//   other blocks                   16 threads each where a block is 256 chunks of 8 numbers or less (1 x 128,
//                                  16 of them at once), else 256 threads (128 x 128)
// x is read twice, the second time mostly from a cache: 2 x (2 or 4) B in, 1 B out a number.
#include "device/cuda/launches.h"
#include "device/cuda/reduce.cuh"
#include "device/cuda/values.cuh"

namespace trireme::cuda {
namespace {

constexpr int kQuantiseThreads = 256;

__device__ __forceinline__ uint32_t bits_of_float(float x) {
  return std::bit_cast<uint32_t>(x);
}
// |x| where x is finite, else 0.
__device__ __forceinline__ float finite_size(float x) {
  const uint32_t a = bits_of_float(x) & 0x7fffffff;
  return a < 0x7f800000 ? std::bit_cast<float>(a) : 0.0f;
}
// *at = max(*at, x) of magnitudes, whose bits are ordered as they are.
__device__ __forceinline__ void raise_magnitude(float* at, float x) {
  atomicMax(reinterpret_cast<unsigned*>(at), unsigned(bits_of_float(x)));
}

// A quantise in plain numbers. Blocks of height x width, `across` of them side by side.
template <class T>
struct Quantise {
  Rows<const T> x;
  uint8_t* codes = nullptr;
  float *scale = nullptr, *seen = nullptr;
  const float* amax = nullptr;
  int64_t rows = 0, cols = 0, height = 0, width = 0, across = 0;
  Fp8Format format = Fp8Format::e4m3;
  int margin = 0;

  explicit Quantise(const QuantiseArgs& a)
      : x(rows_of<const T>(a.x)),
        codes(a.codes.as<uint8_t>()),
        scale(a.scale.as<float>()),
        seen(a.seen ? a.seen.as<float>() : nullptr),
        amax(a.amax ? a.amax.as<float>() : nullptr),
        rows(a.x.shape[0]),
        cols(a.x.shape[1]),
        height(a.blocks.rows > 0 ? a.blocks.rows : rows),
        width(a.blocks.cols > 0 ? a.blocks.cols : cols),
        across(a.scale.shape[1]),
        format(a.format),
        margin(a.margin) {
    x.whole &= width % kChunk == 0 || across == 1;
  }

  // Of n <= 8 numbers of a row from column c on.
  __device__ __forceinline__ float largest(int64_t row, int64_t c, int n) const {
    float v[kChunk], most = 0;
    x.load(row, c, n, v);
#pragma unroll
    for (int i = 0; i < kChunk; i++)
      if (i < n) most = fmaxf(most, finite_size(v[i]));
    return most;
  }
  __device__ __forceinline__ void encode(int64_t row, int64_t c, int n, float per_scale) const {
    float v[kChunk];
    x.load(row, c, n, v);
    uint8_t* to = codes + row * cols + c;
    uint64_t all = 0;
#pragma unroll
    for (int i = 0; i < kChunk; i++) all |= uint64_t(scaled_to_fp8(format, v[i], per_scale)) << (8 * i);
    if (n == kChunk && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
      *reinterpret_cast<uint64_t*>(to) = all;
    } else {
      for (int i = 0; i < n; i++) to[i] = uint8_t(all >> (8 * i));
    }
  }
};

// ---- one block that is all of x ----

// Into the scale's place, as a magnitude.
template <class T>
__global__ void __launch_bounds__(kQuantiseThreads) largest_of_all(Quantise<T> p) {
  if (p.amax && *p.amax > 0 && !p.seen) return;
  const int64_t per_row = (p.cols + kChunk - 1) / kChunk, chunks = p.rows * per_row;
  float most = 0;
  for (int64_t i = int64_t(blockIdx.x) * kQuantiseThreads + threadIdx.x; i < chunks;
       i += int64_t(gridDim.x) * kQuantiseThreads) {
    const int64_t c = i % per_row * kChunk, left = p.cols - c;
    most = fmaxf(most, p.largest(i / per_row, c, int(left < kChunk ? left : kChunk)));
  }
  most = block_max(most);
  if (threadIdx.x == 0) raise_magnitude(p.scale, most);
}
template <class T>
__global__ void __launch_bounds__(32) settle_scale(Quantise<T> p) {
  if (threadIdx.x > 0) return;
  const float most = *p.scale;
  *p.scale = fp8_scale(p.format, p.amax && *p.amax > 0 ? *p.amax : most, p.margin);
  if (p.seen && *p.seen < most) *p.seen = most;
}
template <class T>
struct EncodeChunk {
  Quantise<T> p;
  __device__ void operator()(int64_t row, int64_t c, int n) const { p.encode(row, c, n, 1 / *p.scale); }
};

// ---- blocks ----

// kGroup threads a block of numbers.
template <class T, int kGroup>
__global__ void __launch_bounds__(kQuantiseThreads) quantise_blocks(Quantise<T> p, int64_t blocks) {
  static_assert(kGroup == 16 || kGroup == kQuantiseThreads);
  const int64_t block = int64_t(blockIdx.x) * (kQuantiseThreads / kGroup) + threadIdx.x / kGroup;
  const int64_t first = block / p.across * p.height, begin = block % p.across * p.width;
  int64_t last = first + p.height, end = begin + p.width;  // none of a block behind the last one
  last = block >= blocks ? first : last < p.rows ? last : p.rows, end = end < p.cols ? end : p.cols;
  const int64_t per_row = (end - begin + kChunk - 1) / kChunk, chunks = (last - first) * per_row;
  auto each = [&](const auto& f) {
    for (int64_t i = threadIdx.x % kGroup; i < chunks; i += kGroup) {
      const int64_t c = begin + i % per_row * kChunk, left = end - c;
      f(first + i / per_row, c, int(left < kChunk ? left : kChunk));
    }
  };
  float most = 0;
  each([&](int64_t row, int64_t c, int n) { most = fmaxf(most, p.largest(row, c, n)); });
  if constexpr (kGroup == 16) {
#pragma unroll
    for (int step = kGroup / 2; step > 0; step /= 2)
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
  } else {
    most = block_max(most);
  }
  if (block >= blocks) return;
  const float scale = fp8_scale(p.format, most, p.margin);
  if (threadIdx.x % kGroup == 0) {
    p.scale[block] = scale;
    if (p.seen) raise_magnitude(p.seen, most);
  }
  each([&](int64_t row, int64_t c, int n) { p.encode(row, c, n, 1 / scale); });
}

// Blocks of one column: block (32 columns, band of rows).
template <class T>
__global__ void __launch_bounds__(kQuantiseThreads) quantise_columns(Quantise<T> p) {
  constexpr int kWarps = kQuantiseThreads / 32;
  __shared__ float of_warp[kWarps][32];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int64_t c = int64_t(blockIdx.x) * 32 + lane, first = int64_t(blockIdx.y) * p.height;
  const int64_t last = c >= p.cols ? first : first + p.height < p.rows ? first + p.height : p.rows;
  float most = 0;
  for (int64_t row = first + warp; row < last; row += kWarps)
    most = fmaxf(most, finite_size(widen(p.x.at(row)[c])));
  of_warp[warp][lane] = most;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kWarps; i++) most = fmaxf(most, of_warp[i][lane]);
  if (c >= p.cols) return;
  const float scale = fp8_scale(p.format, most, p.margin);
  if (warp == 0) {
    p.scale[int64_t(blockIdx.y) * p.across + c] = scale;
    if (p.seen) raise_magnitude(p.seen, most);
  }
  for (int64_t row = first + warp; row < last; row += kWarps)
    p.codes[row * p.cols + c] = scaled_to_fp8(p.format, widen(p.x.at(row)[c]), 1 / scale);
}

template <class T>
void quantise(const QuantiseArgs& a, const CudaContext& ctx, cudaStream_t stream) {
  const Quantise<T> p(a);
  const int64_t blocks = a.scale.numel();
  if (blocks == 1) {
    const int64_t most = 8 * int64_t(ctx.multiprocessors),
                  need = ceil_div(p.rows * ceil_div(p.cols, kChunk), kQuantiseThreads);
    set_bytes(p.scale, 0, sizeof(float), stream);
    run_blocks(largest_of_all<T>, need < most ? need : most, kQuantiseThreads, 0, stream, p);
    run_blocks(settle_scale<T>, 1, 32, 0, stream, p);
    each_chunk(p.rows, p.cols, stream, EncodeChunk<T>{p});
  } else if (p.width == 1) {
    run_blocks(quantise_columns<T>, Grid(ceil_div(p.cols, 32), a.scale.shape[0]), kQuantiseThreads, 0, stream,
               p);
  } else if (p.height * ceil_div(p.width, kChunk) <= 256) {
    run_blocks(quantise_blocks<T, 16>, ceil_div(blocks, kQuantiseThreads / 16), kQuantiseThreads, 0, stream,
               p, blocks);
  } else {
    run_blocks(quantise_blocks<T, kQuantiseThreads>, blocks, kQuantiseThreads, 0, stream, p, blocks);
  }
}

}  // namespace

void cuda_launch(const QuantiseArgs& a, const Tensor&, CudaContext& ctx, cudaStream_t stream) {
  by_type(a.x.dtype, [&]<class T>(T) { quantise<T>(a, ctx, stream); });
}

}  // namespace trireme::cuda
