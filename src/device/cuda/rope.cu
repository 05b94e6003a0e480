// Rotary embedding (Su et al. 2021) in place on x [N, heads, D], pairs (a, b) = (i, i + D/2) or (2i, 2i + 1):
//   a' = a cos - b sin,  b' = b cos + a sin;  inverse (the backward pass): sin with the other sign.
// A thread takes up to eight pairs of a head and no other thread touches them: by 16 bytes where every eight
// pairs are so aligned, else element by element. f32, one rounding. Traffic with T = bf16: 4 B an element;
// lines of cos and sin serve all heads from caches.
#include "device/cuda/indices.h"
#include "device/cuda/values.cuh"

namespace trireme::cuda {
namespace {

template <class T>
struct RopeChunk {
  T* x;
  int64_t stride, head_stride, heads, half;
  Rows<const float> cos, sin;
  const int32_t* positions;
  int64_t table;  // rows of cos
  bool inverse, interleaved;
  bool rows32;  // rows are counted in 32 bits
  bool whole;   // eight pairs from a multiple of eight on are 16-byte aligned, and half is a multiple of 8

  // Pairs [c, c + n) of head row % heads of token row / heads.
  __device__ void operator()(int64_t row, int64_t c, int n) const {
    const int64_t token = rows32 ? int64_t(uint32_t(row) / uint32_t(heads)) : row / heads,
                  at = positions[token];
    if (at < 0 || at >= table) return;
    T* head = x + token * stride + (row - token * heads) * head_stride;
    float co[kChunk], si[kChunk];
    load8(cos.at(at) + c, cos.whole && whole, n, co);
    load8(sin.at(at) + c, sin.whole && whole, n, si);
    if (whole) {
      T first[kChunk], second[kChunk];  // in memory order; interleaved pairs alternate
      T *lower = head + (interleaved ? 2 * c : c), *upper = interleaved ? lower + kChunk : lower + half;
      load8(lower, true, kChunk, first);
      load8(upper, true, kChunk, second);
      if (interleaved) {
#pragma unroll
        for (int i = 0; i < kChunk / 2; i++) {
          rotate(first[2 * i], first[2 * i + 1], co[i], si[i]);
          rotate(second[2 * i], second[2 * i + 1], co[kChunk / 2 + i], si[kChunk / 2 + i]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kChunk; i++) rotate(first[i], second[i], co[i], si[i]);
      }
      store8(first, lower, true, kChunk);
      store8(second, upper, true, kChunk);
      return;
    }
#pragma unroll
    for (int i = 0; i < kChunk; i++)
      if (i < n) {
        T& first = interleaved ? head[2 * (c + i)] : head[c + i];
        T& second = interleaved ? head[2 * (c + i) + 1] : head[half + c + i];
        rotate(first, second, co[i], si[i]);
      }
  }
  __device__ __forceinline__ void rotate(T& first, T& second, float c, float s) const {
    const float a = widen(first), b = widen(second), turned = inverse ? -s : s;
    first = narrow<T>(fmaf(a, c, -(b * turned)));
    second = narrow<T>(fmaf(b, c, a * turned));
  }
};

}  // namespace

void cuda_launch(const RopeArgs& a, const Tensor&, CudaContext& ctx, cudaStream_t stream) {
  check_indices(a.positions, 0, a.cos.shape[0], "rope: position", "the table has positions", ctx, stream);
  by_type(a.x.dtype, [&]<class T>(T) {
    const int64_t heads = a.x.shape[1], half = a.x.shape[2] / 2, size = int64_t(sizeof(T));
    const RopeChunk<T> f{
        a.x.as<T>(),
        a.x.stride[0],
        a.x.stride[1],
        heads,
        half,
        rows_of<const float>(a.cos),
        rows_of<const float>(a.sin),
        a.positions.as<int32_t>(),
        a.cos.shape[0],
        a.inverse,
        a.interleaved,
        a.x.shape[0] * heads <= int64_t(UINT32_MAX),
        half % kChunk == 0 && aligned16(a.x.data, a.x.stride[0] * size) && a.x.stride[1] * size % 16 == 0};
    each_chunk(a.x.shape[0] * heads, half, stream, f);
  });
}

}  // namespace trireme::cuda
