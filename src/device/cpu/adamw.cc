// AdamW (Loshchilov & Hutter 2019), elementwise over a flat range, f32:
//   g = grad * grad_scale;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
//   master = master (1 - lr wd) - (lr / bias1) m / (sqrt(v / bias2) + eps)       PyTorch's order
// An element's bits do not depend on where a range is cut. Traffic: 24 B for master and moments, 2 or 4 for
// the gradient, 2 + 2 for the bf16 or f16 weight (its line is read before it is written): 30 B with bf16
// gradients. bf16 moments: 4 B less for each read and each write.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/rng.h"
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

namespace {

constexpr int64_t kPiece = 1024;  // elements whose moments are widened at once: 8 KiB of stack

// Adds 16 random bits below the bits that stay, and cuts: unbiased (Gupta et al. 2015, 1502.02551). A value
// that is not finite keeps its bits.
bf16 round_at_random(float x, uint32_t random) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7f800000) != 0x7f800000) bits += random & 0xffff;
  const auto half = uint16_t(bits >> 16);
  bf16 out;
  std::memcpy(&out, &half, sizeof half);
  return out;
}

// Four neighbouring elements share a counter; the lower half of each word is for the first moment.
void store_moments(const AdamWArgs& a, int64_t begin, int64_t n, const float* m, const float* v) {
  bf16* first = a.exp_avg.as<bf16>() + begin;
  bf16* second = a.exp_avg_sq.as<bf16>() + begin;
  std::array<uint32_t, 4> words{};
  int64_t counter = -1;
  for (int64_t i = 0; i < n; i++) {
    const int64_t j = a.first + begin + i;
    const int64_t global = a.corner + j / a.row * a.stride + j % a.row;
    if (global / 4 != counter) {
      counter = global / 4;
      words = philox(a.key, uint64_t(counter));
    }
    const uint32_t word = words[size_t(global % 4)];
    first[i] = round_at_random(m[i], word);
    second[i] = round_at_random(v[i], word >> 16);
  }
}

// Through f32, in pieces; the arithmetic is that of f32 moments.
void small_moments(const AdamWArgs& a, int64_t begin, int64_t end) {
  alignas(64) float m[kPiece];
  alignas(64) float v[kPiece];
  for (int64_t at = begin; at < end; at += kPiece) {
    const int64_t n = std::min(kPiece, end - at);
    for (int64_t i = 0; i < n; i++) {
      m[i] = float(a.exp_avg.as<bf16>()[at + i]);
      v[i] = float(a.exp_avg_sq.as<bf16>()[at + i]);
    }
    AdamWArgs piece = a;
    piece.master = a.master.narrow(0, at, n);
    piece.grad = a.grad.narrow(0, at, n);
    if (a.weight) piece.weight = a.weight.narrow(0, at, n);
    piece.exp_avg = Tensor(m, {n}, DType::f32);
    piece.exp_avg_sq = Tensor(v, {n}, DType::f32);
    HWY_DYNAMIC_DISPATCH(adamw)(piece, 0, n);
    store_moments(a, at, n, m, v);
  }
}

}  // namespace

int64_t scratch_bytes(const AdamWArgs&, const Context&) {
  return 0;
}
void launch(const AdamWArgs& a, const Tensor&, const Context& ctx) {
  parallel_for(ctx, a.master.numel(), kGrainElements, [&](int64_t begin, int64_t end, int) {
    if (a.exp_avg.dtype == DType::bf16) return small_moments(a, begin, end);
    HWY_DYNAMIC_DISPATCH(adamw)(a, begin, end);
  });
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
