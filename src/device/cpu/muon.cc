// The elementwise parts of Muon (Jordan et al. 2024), f32 between loads and stores:
//   g = grad * grad_scale;  m += (1-beta) (g - m);  update = g + beta (m - g)        torch.optim.Muon's lerps
//   y = alpha a + beta b
//   master = keep master - lr update
// An element's bits do not depend on where a range is cut. Traffic of a bf16 matrix with bf16 gradients: 12 B
// an element before its orthogonalisation, 12 B after.
#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/muon.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/f16-inl.h"
#include "device/cpu/launch.h"
#include "device/cpu/rows.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

template <class G, class U>
void momentum(const MuonMomentumArgs& a, int64_t begin, int64_t end) {
  float* m = a.momentum.as<float>() + begin;
  const G* grad = a.grad.as<G>() + begin;
  U* update = a.update.as<U>() + begin;
  const VF scale = fill(a.grad_scale), fresh = fill(float(1 - double(a.beta)));
  const VF mixed = fill(a.nesterov ? a.beta : 1.0f);
  each_vector(end - begin, [&](int64_t i, auto part) HWY_ATTR {
    const VF g = hn::Mul(load(grad + i, part), scale), before = load(m + i, part);
    const VF m1 = hn::MulAdd(fresh, hn::Sub(g, before), before);
    store(m1, m + i, part);
    store(a.nesterov ? hn::MulAdd(mixed, hn::Sub(m1, g), g) : m1, update + i, part);
  });
}

// W: type of the rounded copy of the weights; float = there is none.
template <class W, class U>
void apply(const MuonApplyArgs& a, int64_t begin, int64_t end) {
  constexpr bool copies = !std::is_same_v<W, float>;
  float* master = a.master.as<float>() + begin;
  const U* update = a.update.as<U>() + begin;
  W* weight = copies ? a.weight.as<W>() + begin : nullptr;
  const VF keep = fill(a.keep), lr = fill(a.lr);
  each_vector(end - begin, [&](int64_t i, auto part) HWY_ATTR {
    const VF w = hn::NegMulAdd(lr, load(update + i, part), hn::Mul(keep, load(master + i, part)));
    store(w, master + i, part);
    if constexpr (copies) store(w, weight + i, part);
  });
}

template <class T>
void sum(const ScaledSumArgs& p, int64_t begin, int64_t end) {
  const T *a = p.a.as<T>() + begin, *b = p.b ? p.b.as<T>() + begin : nullptr;
  T* y = p.y.as<T>() + begin;
  const VF alpha = fill(p.alpha), beta = fill(p.beta);
  if (b)
    each_vector(end - begin, [&](int64_t i, auto part) HWY_ATTR {
      store(hn::MulAdd(alpha, load(a + i, part), hn::Mul(beta, load(b + i, part))), y + i, part);
    });
  else
    each_vector(end - begin, [&](int64_t i, auto part)
                                 HWY_ATTR { store(hn::Mul(alpha, load(a + i, part)), y + i, part); });
}

}  // namespace

void muon_momentum(const MuonMomentumArgs& a, int64_t begin, int64_t end) {
  const bool half = a.update.dtype == DType::bf16;
  if (a.grad.dtype == DType::bf16)
    half ? momentum<bf16, bf16>(a, begin, end) : momentum<bf16, float>(a, begin, end);
  else
    half ? momentum<float, bf16>(a, begin, end) : momentum<float, float>(a, begin, end);
}
void muon_apply(const MuonApplyArgs& a, int64_t begin, int64_t end) {
  const bool half = a.update.dtype == DType::bf16;
  if (!a.weight)
    half ? apply<float, bf16>(a, begin, end) : apply<float, float>(a, begin, end);
  else if (a.weight.dtype == DType::bf16)
    half ? apply<bf16, bf16>(a, begin, end) : apply<bf16, float>(a, begin, end);
  else
    half ? apply<f16, bf16>(a, begin, end) : apply<f16, float>(a, begin, end);
}
void scaled_sum(const ScaledSumArgs& p, int64_t begin, int64_t end) {
  p.a.dtype == DType::bf16 ? sum<bf16>(p, begin, end) : sum<float>(p, begin, end);
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(muon_momentum);
HWY_EXPORT(muon_apply);
HWY_EXPORT(scaled_sum);

int64_t scratch_bytes(const MuonMomentumArgs&, const Context&) {
  return 0;
}
int64_t scratch_bytes(const MuonApplyArgs&, const Context&) {
  return 0;
}
int64_t scratch_bytes(const ScaledSumArgs&, const Context&) {
  return 0;
}

void launch(const MuonMomentumArgs& a, const Tensor&, const Context& ctx) {
  parallel_for(ctx, a.momentum.numel(), kGrainElements, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(muon_momentum)(a, begin, end);
  });
}
void launch(const MuonApplyArgs& a, const Tensor&, const Context& ctx) {
  parallel_for(ctx, a.master.numel(), kGrainElements, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(muon_apply)(a, begin, end);
  });
}
void launch(const ScaledSumArgs& p, const Tensor&, const Context& ctx) {
  parallel_for(ctx, p.a.numel(), kGrainElements, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(scaled_sum)(p, begin, end);
  });
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
