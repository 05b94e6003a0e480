// AdamW (Loshchilov & Hutter 2019), elementwise over a flat range, f32:
//   g = grad * grad_scale;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
//   master = master (1 - lr wd) - (lr / bias1) m / (sqrt(v / bias2) + eps)       PyTorch's order
// An element's bits do not depend on where a range is cut. Traffic: 24 B for master and moments, 2 or 4 for
// the gradient, 2 + 2 for the bf16 or f16 weight (its line is read before it is written): 30 B with bf16
// gradients.
#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/adamw.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/f16-inl.h"
#include "device/cpu/launch.h"
#include "device/cpu/rows.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

// W: type of the rounded copy of the weights; float = there is none.
template <class W, class G>
void update(const AdamWArgs& a, int64_t begin, int64_t end) {
  constexpr bool copies = !std::is_same_v<W, float>;
  float *master = a.master.as<float>() + begin, *m = a.exp_avg.as<float>() + begin,
        *v = a.exp_avg_sq.as<float>() + begin;
  const G* grad = a.grad.as<G>() + begin;
  W* weight = copies ? a.weight.as<W>() + begin : nullptr;
  const VF scale = fill(a.grad_scale), b1 = fill(a.beta1), b2 = fill(a.beta2);
  const VF new1 = fill(float(1 - double(a.beta1))), new2 = fill(float(1 - double(a.beta2)));
  const VF keep = fill(float(1 - double(a.lr) * double(a.weight_decay)));
  const VF step = fill(float(double(a.lr) / double(a.bias1)));
  const VF root = fill(float(1 / std::sqrt(double(a.bias2)))), eps = fill(a.eps);
  each_vector(end - begin, [&](int64_t i, auto part) HWY_ATTR {
    const VF g = hn::Mul(load(grad + i, part), scale);
    const VF m1 = hn::MulAdd(b1, load(m + i, part), hn::Mul(new1, g));
    const VF v1 = hn::MulAdd(b2, load(v + i, part), hn::Mul(hn::Mul(new2, g), g));
    const VF ratio = hn::Div(m1, hn::MulAdd(hn::Sqrt(v1), root, eps));
    const VF w = hn::NegMulAdd(step, ratio, hn::Mul(keep, load(master + i, part)));
    store(m1, m + i, part);
    store(v1, v + i, part);
    store(w, master + i, part);
    if constexpr (copies) store(w, weight + i, part);
  });
}

}  // namespace

void adamw(const AdamWArgs& a, int64_t begin, int64_t end) {
  const bool half = a.grad.dtype == DType::bf16;
  if (!a.weight)
    half ? update<float, bf16>(a, begin, end) : update<float, float>(a, begin, end);
  else if (a.weight.dtype == DType::bf16)
    half ? update<bf16, bf16>(a, begin, end) : update<bf16, float>(a, begin, end);
  else
    half ? update<f16, bf16>(a, begin, end) : update<f16, float>(a, begin, end);
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(adamw);

int64_t scratch_bytes(const AdamWArgs&, const Context&) {
  return 0;
}
void launch(const AdamWArgs& a, const Tensor&, const Context& ctx) {
  parallel_for(ctx, a.master.numel(), kGrainElements, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(adamw)(a, begin, end);
  });
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
