// Rotary embedding (Su et al. 2021) in place on x [N, heads, D], pairs (a, b) = (i, i + D/2) or (2i, 2i + 1):
//   a' = a cos - b sin,  b' = b cos + a sin;  inverse (the backward pass): sin with the other sign.
// A thread takes up to eight pairs of a head and no other thread touches them. f32, one rounding. Traffic
// with T = bf16: 4 B an element; lines of cos and sin serve all heads from caches.
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

  // Pairs [c, c + n) of head row % heads of token row / heads.
  __device__ void operator()(int64_t row, int64_t c, int n) const {
    const int64_t token = row / heads, at = positions[token];
    if (at < 0 || at >= table) return;
    T* head = x + token * stride + row % heads * head_stride;
    const float *co = cos.at(at) + c, *si = sin.at(at) + c;
    for (int i = 0; i < n; i++) {
      T& first = interleaved ? head[2 * (c + i)] : head[c + i];
      T& second = interleaved ? head[2 * (c + i) + 1] : head[half + c + i];
      const float a = widen(first), b = widen(second), s = inverse ? -si[i] : si[i];
      first = narrow<T>(fmaf(a, co[i], -(b * s)));
      second = narrow<T>(fmaf(b, co[i], a * s));
    }
  }
};

}  // namespace

void cuda_launch(const RopeArgs& a, const Tensor&, CudaContext& ctx, cudaStream_t stream) {
  check_indices(a.positions, 0, a.cos.shape[0], "rope: position", "the table has positions", ctx, stream);
  by_type(a.x.dtype, [&]<class T>(T) {
    const int64_t heads = a.x.shape[1], half = a.x.shape[2] / 2;
    const RopeChunk<T> f{a.x.as<T>(),
                         a.x.stride[0],
                         a.x.stride[1],
                         heads,
                         half,
                         rows_of<const float>(a.cos),
                         rows_of<const float>(a.sin),
                         a.positions.as<int32_t>(),
                         a.cos.shape[0],
                         a.inverse,
                         a.interleaved};
    each_chunk(a.x.shape[0] * heads, half, stream, f);
  });
}

}  // namespace trireme::cuda
