// AdamW (Loshchilov & Hutter 2019) and the elementwise parts of Muon (Jordan et al. 2024) over flat ranges,
// f32:
//   g = grad * grad_scale;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
//   master = master (1 - lr wd) - (lr / bias1) m / (sqrt(v / bias2) + eps)       PyTorch's order
//   Muon: m += (1-beta) (g - m);  update = g + beta (m - g);  ...  master = keep master - lr update
//   scaled_sum: y = alpha a + beta b
// Fused and rounded where the CPU's kernels are: the same bits. A thread takes eight elements. Traffic: AdamW
// 24 B for master and moments, 2 or 4 for the gradient, 2 for the copy; Muon 12 B before and 12 after.
#include "base/error.h"
#include "device/cuda/values.cuh"

namespace trireme::cuda {
namespace {

// G: the gradient's type; W: that of the rounded copy of the weights (absent: data is null).
template <class G, class W>
struct AdamWChunk {
  Rows<float> master, exp_avg, exp_avg_sq;
  Rows<const G> grad;
  Rows<W> weight;
  float scale, b1, b2, new1, new2, keep, step, root, eps;
  __device__ void operator()(int64_t, int64_t c, int n) const {
    float w[kChunk], m[kChunk], v[kChunk], g[kChunk];
    master.load(0, c, n, w);
    exp_avg.load(0, c, n, m);
    exp_avg_sq.load(0, c, n, v);
    grad.load(0, c, n, g);
#pragma unroll
    for (int i = 0; i < kChunk; i++) {
      const float d = g[i] * scale;
      m[i] = fmaf(b1, m[i], new1 * d);
      v[i] = fmaf(b2, v[i], new2 * d * d);
      w[i] = fmaf(-step, m[i] / fmaf(sqrtf(v[i]), root, eps), keep * w[i]);
    }
    exp_avg.store(m, 0, c, n);
    exp_avg_sq.store(v, 0, c, n);
    master.store(w, 0, c, n);
    if (weight.data) weight.store(w, 0, c, n);
  }
};

template <class G, class U>
struct MomentumChunk {
  Rows<float> momentum;
  Rows<const G> grad;
  Rows<U> update;
  float scale, fresh, beta;
  bool nesterov;
  __device__ void operator()(int64_t, int64_t c, int n) const {
    float m[kChunk], g[kChunk];
    momentum.load(0, c, n, m);
    grad.load(0, c, n, g);
#pragma unroll
    for (int i = 0; i < kChunk; i++) {
      g[i] = g[i] * scale;
      m[i] = fmaf(fresh, g[i] - m[i], m[i]);
      g[i] = nesterov ? fmaf(beta, m[i] - g[i], g[i]) : m[i];
    }
    momentum.store(m, 0, c, n);
    update.store(g, 0, c, n);
  }
};

template <class U, class W>
struct ApplyChunk {
  Rows<float> master;
  Rows<const U> update;
  Rows<W> weight;
  float keep, lr;
  __device__ void operator()(int64_t, int64_t c, int n) const {
    float w[kChunk], u[kChunk];
    master.load(0, c, n, w);
    update.load(0, c, n, u);
#pragma unroll
    for (int i = 0; i < kChunk; i++) w[i] = fmaf(-lr, u[i], keep * w[i]);
    master.store(w, 0, c, n);
    if (weight.data) weight.store(w, 0, c, n);
  }
};

template <class T>
struct ScaledSumChunk {
  Rows<const T> a, b;
  Rows<T> y;
  float alpha, beta;
  __device__ void operator()(int64_t, int64_t c, int n) const {
    float s[kChunk], t[kChunk];
    a.load(0, c, n, s);
    if (b.data) {
      b.load(0, c, n, t);
#pragma unroll
      for (int i = 0; i < kChunk; i++) s[i] = fmaf(alpha, s[i], beta * t[i]);
    } else {
#pragma unroll
      for (float& e : s) e = alpha * e;
    }
    y.store(s, 0, c, n);
  }
};

// f(G()) with f32 or bf16; f(W()) with the type of a rounded copy, any where there is none.
template <class F>
void by_gradient(DType t, F&& f) {
  t == DType::bf16 ? f(bf16()) : f(float());
}
template <class F>
void by_copy(const Tensor& weight, F&& f) {
  weight&& weight.dtype == DType::f16 ? f(f16()) : f(bf16());
}

}  // namespace

void cuda_launch(const AdamWArgs& a, const Tensor&, CudaContext&, cudaStream_t stream) {
  by_gradient(a.grad.dtype, [&]<class G>(G) {
    by_copy(a.weight, [&]<class W>(W) {
      const AdamWChunk<G, W> f{flat_of<float>(a.master),
                               flat_of<float>(a.exp_avg),
                               flat_of<float>(a.exp_avg_sq),
                               flat_of<const G>(a.grad),
                               flat_of<W>(a.weight),
                               a.grad_scale,
                               a.beta1,
                               a.beta2,
                               float(1 - double(a.beta1)),
                               float(1 - double(a.beta2)),
                               float(1 - double(a.lr) * double(a.weight_decay)),
                               float(double(a.lr) / double(a.bias1)),
                               float(1 / std::sqrt(double(a.bias2))),
                               a.eps};
      each_chunk(1, a.master.numel(), stream, f);
    });
  });
}
void cuda_launch(const MuonMomentumArgs& a, const Tensor&, CudaContext&, cudaStream_t stream) {
  by_gradient(a.grad.dtype, [&]<class G>(G) {
    by_gradient(a.update.dtype, [&]<class U>(U) {
      const MomentumChunk<G, U> f{flat_of<float>(a.momentum),
                                  flat_of<const G>(a.grad),
                                  flat_of<U>(a.update),
                                  a.grad_scale,
                                  float(1 - double(a.beta)),
                                  a.beta,
                                  a.nesterov};
      each_chunk(1, a.momentum.numel(), stream, f);
    });
  });
}
void cuda_launch(const MuonApplyArgs& a, const Tensor&, CudaContext&, cudaStream_t stream) {
  by_gradient(a.update.dtype, [&]<class U>(U) {
    by_copy(a.weight, [&]<class W>(W) {
      const ApplyChunk<U, W> f{flat_of<float>(a.master), flat_of<const U>(a.update), flat_of<W>(a.weight),
                               a.keep, a.lr};
      each_chunk(1, a.master.numel(), stream, f);
    });
  });
}
// Here Muon multiplies its matrices one by one (Kernels::orthogonalises).
void cuda_launch(const OrthogonaliseArgs&, const Tensor&, CudaContext&, cudaStream_t) {
  run_failed("orthogonalise: not an op of CUDA devices");
}
void cuda_launch(const ScaledSumArgs& p, const Tensor&, CudaContext&, cudaStream_t stream) {
  by_type(p.a.dtype, [&]<class T>(T) {
    const ScaledSumChunk<T> f{flat_of<const T>(p.a), flat_of<const T>(p.b), flat_of<T>(p.y), p.alpha, p.beta};
    each_chunk(1, p.a.numel(), stream, f);
  });
}

}  // namespace trireme::cuda
