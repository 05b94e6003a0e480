// GELU (tanh or erf) and SwiGLU, forward and backward, elementwise on rows [N, C]; f32 between load and
// store.
//
//   gelu, tanh:  x s,  s = sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3))      (1 + tanh u = 2 sigmoid(2u))
//   gelu, erf:   x Phi(x),  Phi the normal distribution function
//   swiglu:      gate s up,  s = sigmoid(gate)
// Backward: gelu' = s + x s (1 - s) 2u'   |  Phi + x phi(x)
//           dup = dy gate s,  dgate = dy up s (1 + gate (1 - s))
// One exp and one or two divisions an element. Traffic with T = bf16: gelu 4 and 6 B an element, swiglu 6 and
// 10 B.
#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/activation.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/launch.h"
#include "device/cpu/rows.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

// An activation: the argument whose exp it needs, and from x and that exp e the value and the derivative at x
// (the compiler drops the one that is not used). Apart, so that exp works on packs of vectors.
struct ValueAndSlope {
  VF value, slope;
};

struct GeluTanh {
  static constexpr float k = 1.5957691216057308f;  // 2 sqrt(2/pi)
  static HWY_INLINE VF argument(VF x) {
    return hn::Mul(x, hn::MulAdd(hn::Mul(x, x), fill(-k * 0.044715f), fill(-k)));
  }
  static HWY_INLINE ValueAndSlope finish(VF x, VF e) {
    const auto [s, rest] = sigmoid_of_exp(e);
    const VF value = hn::Mul(x, s), slope_u = hn::MulAdd(hn::Mul(x, x), fill(3 * k * 0.044715f), fill(k));
    return {value, hn::MulAdd(hn::Mul(value, rest), slope_u, s)};
  }
};

// Phi(-|x|) = exp(-x^2/2) t P(t), t = 1 / (1 + 0.33 |x|): P is the minimax polynomial of degree 8 for the
// relative error (4.8e-8 up to |x| = 13.3, beyond which exp is 0), so that the left tail keeps its relative
// accuracy too.
struct GeluErf {
  static HWY_INLINE VF argument(VF x) { return hn::Mul(hn::Mul(x, x), fill(-0.5f)); }
  static HWY_INLINE ValueAndSlope finish(VF x, VF gauss) {
    const VF one = fill(1), t = hn::Div(one, hn::MulAdd(hn::Abs(x), fill(0.33f), one));
    constexpr float c[9] = {0.1316192783f, 0.1323543831f,  0.1106809474f, 0.1233839526f,  -0.06032850687f,
                            0.230301699f,  -0.2722750963f, 0.1255996523f, -0.02133628593f};
    VF p = fill(c[8]);
    for (int i = 7; i >= 0; i--) p = hn::MulAdd(p, t, fill(c[i]));
    const VF tail = hn::Mul(hn::Mul(gauss, t), p);
    const VF phi = hn::IfThenElse(hn::Lt(x, fill(0)), tail, hn::Sub(one, tail));
    return {hn::Mul(x, phi), hn::MulAdd(hn::Mul(x, gauss), fill(0.3989422804f), phi)};
  }
};

struct Silu {
  static HWY_INLINE VF argument(VF x) { return hn::Neg(x); }
  static HWY_INLINE ValueAndSlope finish(VF x, VF e) {
    const auto [s, rest] = sigmoid_of_exp(e);
    return {hn::Mul(x, s), hn::Mul(s, hn::MulAdd(x, rest, fill(1)))};
  }
};

// done(column, value and slope, part) for the vectors of a row of n elements.
template <class Activation, class T, class Done>
HWY_INLINE void activate(const T* row, int64_t n, const Done& done) {
  each_pack(n, [&](int64_t c, auto width, auto part) HWY_ATTR {
    VF x[width], e[width];
    for (int k = 0; k < width; k++) {
      x[k] = load(row + c + k * kLanes, part);
      e[k] = Activation::argument(x[k]);
    }
    exp(e);
    for (int k = 0; k < width; k++) done(c + k * kLanes, Activation::finish(x[k], e[k]), part);
  });
}

template <class Activation, class T>
void gelu_rows(const GeluArgs& a, int64_t begin, int64_t end) {
  const Rows<const T> x = rows_of<const T>(a.x);
  const Rows<T> y = rows_of<T>(a.y);
  for (int64_t n = begin; n < end; n++) {
    T* out = y[n];
    activate<Activation>(x[n], a.x.shape[1], [&](int64_t c, const ValueAndSlope& f, auto part) HWY_ATTR {
      store(f.value, out + c, part);
    });
  }
}

template <class Activation, class T>
void gelu_backward_rows(const GeluBackwardArgs& a, int64_t begin, int64_t end) {
  const Rows<const T> x = rows_of<const T>(a.x), dy = rows_of<const T>(a.dy);
  const Rows<T> dx = rows_of<T>(a.dx);
  for (int64_t n = begin; n < end; n++) {
    const T* d = dy[n];
    T* out = dx[n];
    activate<Activation>(x[n], a.x.shape[1], [&](int64_t c, const ValueAndSlope& f, auto part) HWY_ATTR {
      store(hn::Mul(load(d + c, part), f.slope), out + c, part);
    });
  }
}

template <class T>
void swiglu_rows(const SwigluArgs& a, int64_t begin, int64_t end) {
  const Rows<const T> gate = rows_of<const T>(a.gate), up = rows_of<const T>(a.up);
  const Rows<T> y = rows_of<T>(a.y);
  for (int64_t n = begin; n < end; n++) {
    const T* u = up[n];
    T* out = y[n];
    activate<Silu>(gate[n], a.gate.shape[1], [&](int64_t c, const ValueAndSlope& f, auto part) HWY_ATTR {
      store(hn::Mul(f.value, load(u + c, part)), out + c, part);
    });
  }
}

template <class T>
void swiglu_backward_rows(const SwigluBackwardArgs& a, int64_t begin, int64_t end) {
  const Rows<const T> gate = rows_of<const T>(a.gate), up = rows_of<const T>(a.up),
                      dy = rows_of<const T>(a.dy);
  const Rows<T> dgate = rows_of<T>(a.dgate), dup = rows_of<T>(a.dup);
  for (int64_t n = begin; n < end; n++) {
    const T *u = up[n], *d = dy[n];
    T *dg = dgate[n], *du = dup[n];
    activate<Silu>(gate[n], a.gate.shape[1], [&](int64_t c, const ValueAndSlope& f, auto part) HWY_ATTR {
      const VF dout = load(d + c, part), to_gate = hn::Mul(hn::Mul(dout, load(u + c, part)), f.slope);
      store(hn::Mul(dout, f.value), du + c, part);
      store(to_gate, dg + c, part);
    });
  }
}

}  // namespace

void gelu(const GeluArgs& a, int64_t begin, int64_t end) {
  const bool half = a.x.dtype == DType::bf16;
  if (a.tanh_approx)
    half ? gelu_rows<GeluTanh, bf16>(a, begin, end) : gelu_rows<GeluTanh, float>(a, begin, end);
  else
    half ? gelu_rows<GeluErf, bf16>(a, begin, end) : gelu_rows<GeluErf, float>(a, begin, end);
}
void gelu_backward(const GeluBackwardArgs& a, int64_t begin, int64_t end) {
  const bool half = a.x.dtype == DType::bf16;
  if (a.tanh_approx)
    half ? gelu_backward_rows<GeluTanh, bf16>(a, begin, end)
         : gelu_backward_rows<GeluTanh, float>(a, begin, end);
  else
    half ? gelu_backward_rows<GeluErf, bf16>(a, begin, end)
         : gelu_backward_rows<GeluErf, float>(a, begin, end);
}
void swiglu(const SwigluArgs& a, int64_t begin, int64_t end) {
  a.gate.dtype == DType::bf16 ? swiglu_rows<bf16>(a, begin, end) : swiglu_rows<float>(a, begin, end);
}
void swiglu_backward(const SwigluBackwardArgs& a, int64_t begin, int64_t end) {
  a.gate.dtype == DType::bf16 ? swiglu_backward_rows<bf16>(a, begin, end)
                              : swiglu_backward_rows<float>(a, begin, end);
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(gelu);
HWY_EXPORT(gelu_backward);
HWY_EXPORT(swiglu);
HWY_EXPORT(swiglu_backward);

int64_t scratch_bytes(const GeluArgs&, const Context&) {
  return 0;
}
int64_t scratch_bytes(const GeluBackwardArgs&, const Context&) {
  return 0;
}
int64_t scratch_bytes(const SwigluArgs&, const Context&) {
  return 0;
}
int64_t scratch_bytes(const SwigluBackwardArgs&, const Context&) {
  return 0;
}

void launch(const GeluArgs& a, const Tensor&, const Context& ctx) {
  parallel_for(ctx, a.x.shape[0], row_grain(a.x.shape[1]), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(gelu)(a, begin, end);
  });
}
void launch(const GeluBackwardArgs& a, const Tensor&, const Context& ctx) {
  parallel_for(ctx, a.x.shape[0], row_grain(a.x.shape[1]), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(gelu_backward)(a, begin, end);
  });
}
void launch(const SwigluArgs& a, const Tensor&, const Context& ctx) {
  parallel_for(ctx, a.gate.shape[0], row_grain(a.gate.shape[1]), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(swiglu)(a, begin, end);
  });
}
void launch(const SwigluBackwardArgs& a, const Tensor&, const Context& ctx) {
  parallel_for(ctx, a.gate.shape[0], row_grain(a.gate.shape[1]), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(swiglu_backward)(a, begin, end);
  });
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
