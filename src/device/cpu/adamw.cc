// AdamW (Loshchilov & Hutter 2019), elementwise over a flat range, f32:
//   g = grad * grad_scale;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
//   master = master (1 - lr wd) - (lr / bias1) m / (sqrt(v / bias2) + eps)       PyTorch's order
// An element's bits do not depend on where a range is cut.
//
// Traffic: 24 B for master and moments, 16 B with bf16 moments. The gradient takes 2 or 4 B. The bf16 or f16
// weight takes 2 + 2 B, because its line is read before it is written.
#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/adamw.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/f16-inl.h"
#include "device/cpu/launch.h"
#include "device/cpu/philox-inl.h"
#include "device/cpu/rows.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

// Rounds each lane to bf16 stochastically (Gupta et al. 2015, arXiv 1502.02551): adds the low 16 bits of
// `random` below the bits that stay, and cuts. The mean is the value, and values of bf16 stay unchanged. A
// finite value never becomes infinite: beyond the largest bf16 it is cut. NaN stays NaN.
HWY_INLINE hn::Vec<DH> round_at_random(VF v, hn::Vec<DU> random) {
  const DU d;
  const auto exponent = hn::Set(d, 0x7f800000);
  const auto u = hn::BitCast(d, v);
  const auto sum = hn::Add(u, hn::And(random, hn::Set(d, 0xffff)));
  const auto overflows = hn::Eq(hn::And(sum, exponent), exponent);
  const auto finite = hn::IfThenElse(overflows, u, sum);
  const auto quiet = hn::Or(u, hn::Set(d, 0x400000));
  const auto out = hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(v)), quiet, finite);
  return hn::TruncateTo(DH(), hn::ShiftRight<16>(out));
}
HWY_INLINE void store_at_random(VF v, bf16* p, hn::Vec<DU> random, Whole) {
  hn::StoreU(round_at_random(v, random), DH(), &p->bits);
}
HWY_INLINE void store_at_random(VF v, bf16* p, hn::Vec<DU> random, int64_t n) {
  HWY_ALIGN bf16 t[kLanes];
  store_at_random(v, t, random, Whole());
  std::memcpy(static_cast<void*>(p), t, size_t(n) * sizeof *p);
}

// body(i, part, words) for every vector of elements [begin, end); words: theirs, by element of the tensor.
template <class Body>
HWY_INLINE void each_numbered(const AdamWArgs& a, int64_t begin, int64_t end, const Body& body) {
  for (int64_t next; begin < end; begin = next) {
    const int64_t at = a.first + begin;
    next = std::min(end, begin + a.row - at % a.row);
    const int64_t element = a.corner + at / a.row * a.stride + at % a.row;
    each_drawn(a.key, uint64_t(element), next - begin, [&](int64_t i, const uint32_t* words) HWY_ATTR {
      each_vector(std::min(kRun, next - begin - i),
                  [&](int64_t j, auto part) HWY_ATTR { body(begin + i + j, part, words + j); });
    });
  }
}

// W: type of the rounded copy of the weights; float = there is none. M: type of the moments. The lower half
// of an element's random word rounds the first moment, the upper half the second.
template <class W, class M, class G>
void update(const AdamWArgs& a, int64_t begin, int64_t end) {
  constexpr bool copies = !std::is_same_v<W, float>;
  float* master = a.master.as<float>();
  M* m = a.exp_avg.as<M>();
  M* v = a.exp_avg_sq.as<M>();
  const G* grad = a.grad.as<G>();
  W* weight = copies ? a.weight.as<W>() : nullptr;
  const VF scale = fill(a.grad_scale), b1 = fill(a.beta1), b2 = fill(a.beta2);
  const VF new1 = fill(float(1 - double(a.beta1))), new2 = fill(float(1 - double(a.beta2)));
  const VF keep = fill(float(1 - double(a.lr) * double(a.weight_decay)));
  const VF step = fill(float(double(a.lr) / double(a.bias1)));
  const VF root = fill(float(1 / std::sqrt(double(a.bias2)))), eps = fill(a.eps);
  const auto one = [&](int64_t i, auto part, const uint32_t* words) HWY_ATTR {
    const VF g = hn::Mul(load(grad + i, part), scale);
    const VF m1 = hn::MulAdd(b1, load(m + i, part), hn::Mul(new1, g));
    const VF v1 = hn::MulAdd(b2, load(v + i, part), hn::Mul(hn::Mul(new2, g), g));
    const VF ratio = hn::Div(m1, hn::MulAdd(hn::Sqrt(v1), root, eps));
    const VF w = hn::NegMulAdd(step, ratio, hn::Mul(keep, load(master + i, part)));
    if constexpr (std::is_same_v<M, bf16>) {
      const auto random = hn::LoadU(DU(), words);
      store_at_random(m1, m + i, random, part);
      store_at_random(v1, v + i, hn::ShiftRight<16>(random), part);
    } else {
      store(m1, m + i, part);
      store(v1, v + i, part);
    }
    store(w, master + i, part);
    if constexpr (copies) store(w, weight + i, part);
  };
  if constexpr (std::is_same_v<M, bf16>)
    each_numbered(a, begin, end, one);
  else
    each_vector(end - begin, [&](int64_t i, auto part)
                                 HWY_ATTR { one(begin + i, part, static_cast<uint32_t*>(nullptr)); });
}

template <class W, class M>
void update(const AdamWArgs& a, int64_t begin, int64_t end) {
  a.grad.dtype == DType::bf16 ? update<W, M, bf16>(a, begin, end) : update<W, M, float>(a, begin, end);
}
template <class W>
void update(const AdamWArgs& a, int64_t begin, int64_t end) {
  a.exp_avg.dtype == DType::bf16 ? update<W, bf16>(a, begin, end) : update<W, float>(a, begin, end);
}

}  // namespace

void adamw(const AdamWArgs& a, int64_t begin, int64_t end) {
  if (!a.weight)
    update<float>(a, begin, end);
  else if (a.weight.dtype == DType::bf16)
    update<bf16>(a, begin, end);
  else
    update<f16>(a, begin, end);
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
