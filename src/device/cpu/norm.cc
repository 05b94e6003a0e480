// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019), forward and backward, on rows x [N, C].
//
// Forward, per row: mean (LayerNorm), then the sum of squared deviations in a second pass (the row is in L1),
// then y. Backward, with h = (x - mean) * rstd and g = dy * weight:
//   dx = rstd * (g - mean(g) - h * mean(g * h)) [+ add]      RMSNorm: without mean and mean(g)
//   dweight = sum over rows of dy * h,  dbias = sum over rows of dy
// Four rows go through the columns together, so weight and the f32 sums of dweight and dbias are loaded once
// for four rows. The sums of a block of rows (RowBlocks) stay in L1 and leave once; the blocks are added in
// order by a second loop over columns. Everything is f32 between one load and one store; a row's result
// depends on that row alone. Traffic with T = bf16: forward 4 B an element, backward 6 B, or 8 with `add`.
#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/norm.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/launch.h"
#include "device/cpu/partials.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

template <class Args>
inline constexpr bool kCentered = requires(const Args& a) {
  a.mean;
};

// Rows of [N, C], or of [N, heads, C] with heads one behind the other.
template <class T>
struct HeadRows {
  T* data;
  int64_t stride, heads, width;  // in elements
  explicit HeadRows(const Tensor& t)
      : data(t ? t.as<std::remove_const_t<T>>() : nullptr), stride(0), heads(1), width(0) {
    if (!t) return;
    stride = t.stride[0], width = t.shape[t.shape.rank - 1];
    if (t.shape.rank == 3) heads = t.shape[1];
  }
  T* operator[](int64_t i) const {
    return heads == 1 ? data + i * stride : data + i / heads * stride + i % heads * width;
  }
  explicit operator bool() const { return data != nullptr; }
};
int64_t columns(const Tensor& x) {
  return x.shape[x.shape.rank - 1];
}

// Rows [n, n + R) together: the columns of weight and bias are converted once for all of them.
template <int R, class T, class Args>
HWY_INLINE void forward_rows(const Args& a, int64_t n) {
  constexpr bool centered = kCentered<Args>;
  const HeadRows<const T> x(a.x);
  const HeadRows<T> y(a.y);
  const T *weight = a.weight.template as<T>(), *bias = nullptr, *in[R];
  if constexpr (centered) bias = a.bias.template as<T>();
  T* out[R];
  const int64_t cols = columns(a.x);
  VF mean[R], square[R], rstd[R];
  for (int r = 0; r < R; r++) {
    in[r] = x[n + r], out[r] = y[n + r];
    mean[r] = square[r] = fill(0);
  }
  if constexpr (centered) {
    each_vector(cols, [&](int64_t c, auto part) HWY_ATTR {
      for (int r = 0; r < R; r++) mean[r] = hn::Add(mean[r], load(in[r] + c, part));
    });
    for (int r = 0; r < R; r++) {
      const float m = sum(mean[r]) / float(cols);
      a.mean.template as<float>()[n + r] = m;
      mean[r] = fill(m);
    }
  }
  each_vector(cols, [&](int64_t c, auto part) HWY_ATTR {
    for (int r = 0; r < R; r++) {
      VF d = load(in[r] + c, part);
      if constexpr (centered) d = pad(hn::Sub(d, mean[r]), part, 0);
      square[r] = hn::MulAdd(d, d, square[r]);
    }
  });
  for (int r = 0; r < R; r++) {
    const float s = 1 / std::sqrt(sum(square[r]) / float(cols) + a.eps);
    a.rstd.template as<float>()[n + r] = s;
    rstd[r] = fill(s);
  }
  each_vector(cols, [&](int64_t c, auto part) HWY_ATTR {
    const VF w = load(weight + c, part);
    VF b = fill(0);
    if constexpr (centered) b = load(bias + c, part);
    for (int r = 0; r < R; r++) {
      const VF v = load(in[r] + c, part);
      if constexpr (centered)
        store(hn::MulAdd(hn::Mul(hn::Sub(v, mean[r]), rstd[r]), w, b), out[r] + c, part);
      else
        store(hn::Mul(hn::Mul(v, rstd[r]), w), out[r] + c, part);
    }
  });
}
template <class T, class Args>
void forward(const Args& a, int64_t begin, int64_t end) {
  int64_t n = begin;
  for (; n + 4 <= end; n += 4) forward_rows<4, T>(a, n);
  for (; n < end; n++) forward_rows<1, T>(a, n);
}

// One operand set for both norms; dbias and mean are unused by RMSNorm.
template <class T>
struct Backward {
  HeadRows<const T> dy, x, add;
  HeadRows<T> dx;
  const T* weight;
  const float *mean, *rstd;
  int64_t cols;
};

// Rows [n, n + R): dx, and their share of dweight and dbias added to the block's sums.
template <int R, bool centered, class T>
HWY_INLINE void backward_rows(const Backward<T>& a, int64_t n, float* dweight, float* dbias) {
  const T *dy[R], *x[R], *add[R];
  T* dx[R];
  VF mean[R], rstd[R], sum_g[R], sum_gh[R];
  for (int r = 0; r < R; r++) {
    dy[r] = a.dy[n + r], x[r] = a.x[n + r], dx[r] = a.dx[n + r];
    add[r] = a.add ? a.add[n + r] : nullptr;
    mean[r] = fill(centered ? a.mean[n + r] : 0.0f), rstd[r] = fill(a.rstd[n + r]);
    sum_g[r] = sum_gh[r] = fill(0);
  }
  each_vector(a.cols, [&](int64_t c, auto part) HWY_ATTR {
    const VF w = load(a.weight + c, part);
    for (int r = 0; r < R; r++) {
      const VF g = hn::Mul(load(dy[r] + c, part), w);
      const VF h = hn::Mul(hn::Sub(load(x[r] + c, part), mean[r]), rstd[r]);
      if constexpr (centered) sum_g[r] = hn::Add(sum_g[r], g);
      sum_gh[r] = hn::MulAdd(g, h, sum_gh[r]);
    }
  });
  VF mean_g[R], mean_gh[R];
  for (int r = 0; r < R; r++) {
    mean_g[r] = fill(centered ? sum(sum_g[r]) / float(a.cols) : 0.0f);
    mean_gh[r] = fill(sum(sum_gh[r]) / float(a.cols));
  }
  each_vector(a.cols, [&](int64_t c, auto part) HWY_ATTR {
    const VF w = load(a.weight + c, part);
    VF dw = load(dweight + c, part), db = fill(0);
    if constexpr (centered) db = load(dbias + c, part);
    for (int r = 0; r < R; r++) {
      const VF d = load(dy[r] + c, part);
      const VF h = hn::Mul(hn::Sub(load(x[r] + c, part), mean[r]), rstd[r]);
      dw = hn::MulAdd(d, h, dw);
      if constexpr (centered) db = hn::Add(db, d);
      const VF inner = hn::NegMulAdd(h, mean_gh[r], hn::MulSub(d, w, mean_g[r]));
      const VF other = a.add ? load(add[r] + c, part) : fill(0);
      store(hn::MulAdd(rstd[r], inner, other), dx[r] + c, part);
    }
    store(dw, dweight + c, part);
    if constexpr (centered) store(db, dbias + c, part);
  });
}

template <class T, class Args>
void backward(const Args& a, float* partial, int64_t begin, int64_t end) {
  constexpr bool centered = kCentered<Args>;
  Backward<T> b{HeadRows<const T>(a.dy),     HeadRows<const T>(a.x),
                HeadRows<const T>(a.add),    HeadRows<T>(a.dx),
                a.weight.template as<T>(),   nullptr,
                a.rstd.template as<float>(), columns(a.x)};
  if constexpr (centered) b.mean = a.mean.template as<float>();
  const RowBlocks blocks(a.rstd.numel(), b.cols);
  const int64_t width = blocks.padded * (centered ? 2 : 1);
  for (int64_t i = begin; i < end; i++) {
    float *dweight = partial + i * width, *dbias = dweight + blocks.padded;
    std::memset(dweight, 0, size_t(width) * sizeof(float));
    int64_t n = blocks.begin(i), last = blocks.begin(i + 1);
    for (; n + 4 <= last; n += 4) backward_rows<4, centered>(b, n, dweight, dbias);
    for (; n < last; n++) backward_rows<1, centered>(b, n, dweight, dbias);
  }
}

}  // namespace

template <class Args>
void forward_of(const Args& a, int64_t begin, int64_t end) {
  a.x.dtype == DType::bf16 ? forward<bf16>(a, begin, end) : forward<float>(a, begin, end);
}
template <class Args>
void backward_of(const Args& a, float* partial, int64_t begin, int64_t end) {
  a.x.dtype == DType::bf16 ? backward<bf16>(a, partial, begin, end) : backward<float>(a, partial, begin, end);
}
void layernorm(const LayerNormArgs& a, int64_t begin, int64_t end) {
  forward_of(a, begin, end);
}
void rmsnorm(const RmsNormArgs& a, int64_t begin, int64_t end) {
  forward_of(a, begin, end);
}
void layernorm_backward(const LayerNormBackwardArgs& a, float* partial, int64_t begin, int64_t end) {
  backward_of(a, partial, begin, end);
}
void rmsnorm_backward(const RmsNormBackwardArgs& a, float* partial, int64_t begin, int64_t end) {
  backward_of(a, partial, begin, end);
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(layernorm);
HWY_EXPORT(rmsnorm);
HWY_EXPORT(layernorm_backward);
HWY_EXPORT(rmsnorm_backward);

int64_t scratch_bytes(const LayerNormArgs&, const Context&) {
  return 0;
}
void launch(const LayerNormArgs& a, const Tensor&, const Context& ctx) {
  parallel_for(ctx, a.x.shape[0], row_grain(a.x.shape[1]), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(layernorm)(a, begin, end);
  });
}
int64_t scratch_bytes(const RmsNormArgs&, const Context&) {
  return 0;
}
void launch(const RmsNormArgs& a, const Tensor&, const Context& ctx) {
  parallel_for(ctx, a.rstd.numel(), row_grain(a.weight.numel()), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(rmsnorm)(a, begin, end);
  });
}

int64_t scratch_bytes(const LayerNormBackwardArgs& a, const Context&) {
  return RowBlocks(a.x.shape[0], a.x.shape[1]).scratch_bytes(2);
}
void launch(const LayerNormBackwardArgs& a, const Tensor& scratch, const Context& ctx) {
  const RowBlocks blocks(a.x.shape[0], a.x.shape[1]);
  float* partial = reinterpret_cast<float*>(scratch.data);
  parallel_for(ctx, blocks.blocks, 1, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(layernorm_backward)(a, partial, begin, end);
  });
  add_partials(ctx, {partial, blocks.blocks, 2 * blocks.padded, false}, a.dweight);
  add_partials(ctx, {partial + blocks.padded, blocks.blocks, 2 * blocks.padded, false}, a.dbias);
}
int64_t scratch_bytes(const RmsNormBackwardArgs& a, const Context&) {
  return RowBlocks(a.rstd.numel(), a.weight.numel()).scratch_bytes(1);
}
void launch(const RmsNormBackwardArgs& a, const Tensor& scratch, const Context& ctx) {
  const RowBlocks blocks(a.rstd.numel(), a.weight.numel());
  float* partial = reinterpret_cast<float*>(scratch.data);
  parallel_for(ctx, blocks.blocks, 1, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(rmsnorm_backward)(a, partial, begin, end);
  });
  add_partials(ctx, {partial, blocks.blocks, blocks.padded, false}, a.dweight);
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
