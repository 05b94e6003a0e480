// GELU (tanh or erf) and SwiGLU, forward and backward, elementwise on rows [N, C]; f32 between load and
// store.
//
//   gelu, tanh:  x s,  s = sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3))      (1 + tanh u = 2 sigmoid(2u))
//   gelu, erf:   x Phi(x),  Phi(x) = erfc(-x / sqrt 2) / 2: the left tail keeps its relative accuracy
//   swiglu:      gate s up,  s = sigmoid(gate)
// Backward: gelu' = s + x s (1 - s) 2u'   |  Phi + x phi(x)
//           dup = dy gate s,  dgate = dy up s (1 + gate (1 - s))
// A thread takes eight elements and nothing of others: no order to fix. Traffic with T = bf16: gelu 4 and 6 B
// an element, swiglu 6 and 10 B; some 20 FLOPs.
#include "device/cuda/matmul_gelu.h"
#include "device/cuda/values.cuh"

namespace trireme::cuda {
namespace {

struct ValueAndSlope {
  float value, slope;
};

// Of e = exp(-x): s = 1 / (1 + e), and 1 - s as e s: no cancellation for large x. Where e overflowed both
// are 0, for the minimum keeps inf * 0 out.
struct Sigmoid {
  float s, rest;
};
__device__ __forceinline__ Sigmoid sigmoid_of_exp(float e) {
  const float s = 1 / (1 + e);
  return {s, fminf(3e38f, e) * s};
}

struct GeluTanh {
  __device__ __forceinline__ ValueAndSlope operator()(float x) const {
    constexpr float k = 1.5957691216057308f;  // 2 sqrt(2/pi)
    const float square = x * x;
    const auto [s, rest] = sigmoid_of_exp(expf(x * fmaf(square, -k * 0.044715f, -k)));
    const float value = x * s;
    return {value, fmaf(value * rest, fmaf(square, 3 * k * 0.044715f, k), s)};
  }
};
struct GeluErf {
  __device__ __forceinline__ ValueAndSlope operator()(float x) const {
    const float phi = 0.5f * erfcf(-0.70710678f * x);
    return {x * phi, fmaf(x * expf(-0.5f * x * x), 0.3989422804f, phi)};
  }
};
struct Silu {
  __device__ __forceinline__ ValueAndSlope operator()(float x) const {
    const auto [s, rest] = sigmoid_of_exp(expf(-x));
    return {x * s, s * fmaf(x, rest, 1.0f)};
  }
};

template <class Activation, class T>
struct GeluChunk {
  Rows<const T> x;
  Rows<T> y;
  __device__ void operator()(int64_t row, int64_t c, int n) const {
    float v[kChunk];
    x.load(row, c, n, v);
#pragma unroll
    for (float& e : v) e = Activation()(e).value;
    y.store(v, row, c, n);
  }
};
template <class Activation, class T>
struct GeluBackwardChunk {
  Rows<const T> x, dy;
  Rows<T> dx;
  __device__ void operator()(int64_t row, int64_t c, int n) const {
    float v[kChunk], d[kChunk];
    x.load(row, c, n, v);
    dy.load(row, c, n, d);
#pragma unroll
    for (int i = 0; i < kChunk; i++) v[i] = d[i] * Activation()(v[i]).slope;
    dx.store(v, row, c, n);
  }
};
template <class T>
struct SwigluChunk {
  Rows<const T> gate, up;
  Rows<T> y;
  __device__ void operator()(int64_t row, int64_t c, int n) const {
    float g[kChunk], u[kChunk];
    gate.load(row, c, n, g);
    up.load(row, c, n, u);
#pragma unroll
    for (int i = 0; i < kChunk; i++) g[i] = Silu()(g[i]).value * u[i];
    y.store(g, row, c, n);
  }
};
template <class T>
struct SwigluBackwardChunk {
  Rows<const T> gate, up, dy;
  Rows<T> dgate, dup;
  __device__ void operator()(int64_t row, int64_t c, int n) const {
    float g[kChunk], u[kChunk], d[kChunk];
    gate.load(row, c, n, g);
    up.load(row, c, n, u);
    dy.load(row, c, n, d);
#pragma unroll
    for (int i = 0; i < kChunk; i++) {
      const ValueAndSlope f = Silu()(g[i]);
      g[i] = d[i] * u[i] * f.slope;
      u[i] = d[i] * f.value;
    }
    dup.store(u, row, c, n);
    dgate.store(g, row, c, n);
  }
};

}  // namespace

void cuda_launch(const GeluArgs& a, const Tensor&, CudaContext&, cudaStream_t stream) {
  by_type(a.x.dtype, [&]<class T>(T) {
    auto with = [&]<class Activation>(Activation) {
      each_chunk(a.x.shape[0], a.x.shape[1], stream,
                 GeluChunk<Activation, T>{rows_of<const T>(a.x), rows_of<T>(a.y)});
    };
    a.tanh_approx ? with(GeluTanh()) : with(GeluErf());
  });
}
void cuda_launch(const GeluBackwardArgs& a, const Tensor&, CudaContext&, cudaStream_t stream) {
  by_type(a.x.dtype, [&]<class T>(T) {
    auto with = [&]<class Activation>(Activation) {
      each_chunk(
          a.x.shape[0], a.x.shape[1], stream,
          GeluBackwardChunk<Activation, T>{rows_of<const T>(a.x), rows_of<const T>(a.dy), rows_of<T>(a.dx)});
    };
    a.tanh_approx ? with(GeluTanh()) : with(GeluErf());
  });
}
// One call where the library has it; else the product into c, then gelu from it (dx in dy's place).
void cuda_launch(const MatmulGeluArgs& a, const Tensor& scratch, CudaContext& ctx, cudaStream_t stream) {
  if (a.c.numel() == 0 || gelu_in_library(a, scratch, ctx, stream)) return;
  cuda_launch(product_of(a), scratch, ctx, stream);
  cuda_launch(GeluArgs{.x = a.c, .y = a.y}, Tensor(), ctx, stream);
}
void cuda_launch(const MatmulGeluBackwardArgs& a, const Tensor& scratch, CudaContext& ctx,
                 cudaStream_t stream) {
  if (a.c.numel() == 0 || gelu_in_library(a, scratch, ctx, stream)) return;
  cuda_launch(product_of(a), scratch, ctx, stream);
  cuda_launch(GeluBackwardArgs{.x = a.x, .dy = a.c, .dx = a.c}, Tensor(), ctx, stream);
}
void cuda_launch(const SwigluArgs& a, const Tensor&, CudaContext&, cudaStream_t stream) {
  by_type(a.gate.dtype, [&]<class T>(T) {
    each_chunk(a.gate.shape[0], a.gate.shape[1], stream,
               SwigluChunk<T>{rows_of<const T>(a.gate), rows_of<const T>(a.up), rows_of<T>(a.y)});
  });
}
void cuda_launch(const SwigluBackwardArgs& a, const Tensor&, CudaContext&, cudaStream_t stream) {
  by_type(a.gate.dtype, [&]<class T>(T) {
    each_chunk(a.gate.shape[0], a.gate.shape[1], stream,
               SwigluBackwardChunk<T>{rows_of<const T>(a.gate), rows_of<const T>(a.up),
                                      rows_of<const T>(a.dy), rows_of<T>(a.dgate), rows_of<T>(a.dup)});
  });
}

}  // namespace trireme::cuda
