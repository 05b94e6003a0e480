// What only moves elements: copies between strides, the key/value cache, heads beside a shared part. Bound by
// memory: every element is read and written once. concat_shared_backward adds a token's heads in ascending
// order.
#include "device/cuda/indices.h"
#include "device/cuda/strided.cuh"
#include "device/cuda/values.cuh"

namespace trireme::cuda {
namespace {

constexpr int kCopyThreads = 256;

template <class U>
__global__ void __launch_bounds__(kCopyThreads)
    copy_elements(U* dst, const U* src, StridedPlaces to, StridedPlaces from, int64_t n) {
  const int64_t i = int64_t(blockIdx.x) * kCopyThreads + threadIdx.x;
  if (i < n) dst[to.at(i)] = src[from.at(i)];
}
template <class U>
void copy_as(const Tensor& dst, const Tensor& src, cudaStream_t stream) {
  run_blocks(copy_elements<U>, ceil_div(dst.numel(), kCopyThreads), kCopyThreads, 0, stream,
             reinterpret_cast<U*>(dst.data), reinterpret_cast<const U*>(src.data), StridedPlaces(dst),
             StridedPlaces(src), dst.numel());
}

// A row [b, s, h] of x goes to row [b, positions[b, s], h] of the cache.
template <class T>
struct AppendChunk {
  const T* x;
  T* cache;
  const int32_t* positions;
  int64_t s, heads, capacity;
  int64_t x_stride[3], cache_stride[3];
  __device__ void operator()(int64_t row, int64_t c, int n) const {
    const int64_t h = row % heads, token = row / heads, b = token / s;
    const int64_t at = positions[token];
    if (at < 0 || at >= capacity) return;
    const T* from = x + b * x_stride[0] + token % s * x_stride[1] + h * x_stride[2] + c;
    T* to = cache + b * cache_stride[0] + at * cache_stride[1] + h * cache_stride[2] + c;
    for (int i = 0; i < n; i++) to[i] = from[i];
  }
};
template <class T>
void append(const Tensor& x, const Tensor& cache, const Tensor& positions, cudaStream_t stream) {
  AppendChunk<T> f{
      x.as<T>(), cache.as<T>(), positions.as<int32_t>(), x.shape[1], x.shape[2], cache.shape[1], {}, {}};
  for (size_t d = 0; d < 3; d++) f.x_stride[d] = x.stride[d], f.cache_stride[d] = cache.stride[d];
  each_chunk(x.shape[0] * x.shape[1] * x.shape[2], x.shape[3], stream, f);
}

// Row [n, h] of t [N, H, C] or row n of t [N, C].
template <class T>
struct HeadPlaces {
  T* data;
  int64_t stride, head_stride;
  explicit HeadPlaces(const Tensor& t)
      : data(t.as<std::remove_const_t<T>>()),
        stride(t.stride[0]),
        head_stride(t.shape.rank == 3 ? t.stride[1] : 0) {}
  __device__ __forceinline__ T* at(int64_t n, int64_t h) const { return data + n * stride + h * head_stride; }
};

// Rows (n, h) of y: own columns, then the shared ones.
template <class T>
struct ConcatChunk {
  HeadPlaces<const T> a, b;
  HeadPlaces<T> y;
  int64_t heads, own;
  __device__ void operator()(int64_t row, int64_t c, int n) const {
    const int64_t token = row / heads, h = row % heads;
    const T *left = a.at(token, h), *right = b.at(token, h);
    T* out = y.at(token, h);
    for (int64_t i = c; i < c + n; i++) out[i] = i < own ? left[i] : right[i - own];
  }
};
template <class T>
struct OwnPartChunk {
  HeadPlaces<const T> dy;
  HeadPlaces<T> da;
  int64_t heads;
  __device__ void operator()(int64_t row, int64_t c, int n) const {
    const T* from = dy.at(row / heads, row % heads) + c;
    T* to = da.at(row / heads, row % heads) + c;
    for (int i = 0; i < n; i++) to[i] = from[i];
  }
};
template <class T>
struct SharedPartChunk {
  HeadPlaces<const T> dy;
  HeadPlaces<T> db;
  int64_t heads, own;
  __device__ void operator()(int64_t token, int64_t c, int n) const {
    for (int i = 0; i < n; i++) {
      float total = 0;
      for (int64_t h = 0; h < heads; h++) total += widen(dy.at(token, h)[own + c + i]);
      db.at(token, 0)[c + i] = narrow<T>(total);
    }
  }
};

}  // namespace

void copy_strided(const Tensor& dst, const Tensor& src, cudaStream_t stream) {
  if (dst.numel() == 0 || dst.data == src.data) return;
  if (dst.contiguous() && src.contiguous()) return copy_bytes(dst.data, src.data, dst.bytes(), stream);
  switch (size_of(dst.dtype)) {
    case 1:
      return copy_as<uint8_t>(dst, src, stream);
    case 2:
      return copy_as<uint16_t>(dst, src, stream);
    case 4:
      return copy_as<uint32_t>(dst, src, stream);
    default:
      return copy_as<uint64_t>(dst, src, stream);
  }
}

void cuda_launch(const CacheAppendArgs& p, const Tensor&, CudaContext& ctx, cudaStream_t stream) {
  check_indices(p.positions, -1, p.k_cache.shape[1], "cache_append: position", "the cache has positions", ctx,
                stream);
  by_type(p.k.dtype, [&]<class T>(T) {
    append<T>(p.k, p.k_cache, p.positions, stream);
    append<T>(p.v, p.v_cache, p.positions, stream);
  });
}

void cuda_launch(const ConcatSharedArgs& p, const Tensor&, CudaContext&, cudaStream_t stream) {
  const int64_t heads = p.y.shape[1];
  by_type(p.y.dtype, [&]<class T>(T) {
    each_chunk(p.y.shape[0] * heads, p.y.shape[2], stream,
               ConcatChunk<T>{HeadPlaces<const T>(p.a), HeadPlaces<const T>(p.b), HeadPlaces<T>(p.y), heads,
                              p.a.shape[2]});
  });
}
void cuda_launch(const ConcatSharedBackwardArgs& p, const Tensor&, CudaContext&, cudaStream_t stream) {
  const int64_t heads = p.dy.shape[1], own = p.da.shape[2];
  by_type(p.dy.dtype, [&]<class T>(T) {
    const HeadPlaces<const T> dy(p.dy);
    each_chunk(p.dy.shape[0] * heads, own, stream, OwnPartChunk<T>{dy, HeadPlaces<T>(p.da), heads});
    each_chunk(p.dy.shape[0], p.db.shape[1], stream, SharedPartChunk<T>{dy, HeadPlaces<T>(p.db), heads, own});
  });
}

}  // namespace trireme::cuda
