// Softmax cross-entropy fused with its gradient, row by row of logits [N, V], in place.
//
// Three passes over a row, which stays in L2: the maximum m; e = exp(x - m) and its sum Z; then
// gradient = e * grad_scale / Z, less grad_scale at the target. One exp an element: e is kept in f32, in
// place for f32 logits, in a row of scratch for each thread for bf16, so nothing of size [N, V] exists in
// f32. loss = log Z - (x[target] - m), finished in double. Traffic: logits read once and written once.
#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/cross_entropy.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/indices.h"
#include "device/cpu/launch.h"
#include "device/cpu/rows.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

template <class T>
HWY_INLINE float row_max(const T* x, int64_t vocab) {
  const VF low = fill(-HUGE_VALF);
  VF acc[4] = {low, low, low, low};
  each_pack(vocab, [&](int64_t i, auto width, auto part) HWY_ATTR {
    for (int k = 0; k < width; k++)
      acc[k] = hn::Max(acc[k], pad(load(x + i + k * kLanes, part), part, -HUGE_VALF));
  });
  return max(acc);
}

// Sum of exp(x - m); the terms go to `kept` where told (f32, may be x itself).
template <bool keep, class T>
HWY_INLINE float sum_exp(const T* x, float m, int64_t vocab, float* kept) {
  const VF shift = fill(m);
  VF acc[4] = {fill(0), fill(0), fill(0), fill(0)};
  each_pack(vocab, [&](int64_t i, auto width, auto part) HWY_ATTR {
    VF e[width];
    for (int k = 0; k < width; k++) e[k] = hn::Sub(load(x + i + k * kLanes, part), shift);
    exp(e);
    for (int k = 0; k < width; k++) {
      if constexpr (keep) store(e[k], kept + i + k * kLanes, part);
      acc[k] = hn::Add(acc[k], pad(e[k], part, 0));
    }
  });
  return sum(acc);
}

template <class T>
void rows(const CrossEntropyArgs& a, float* kept, int64_t begin, int64_t end) {
  const Rows<T> logits = rows_of<T>(a.logits);
  const int32_t* targets = a.targets.as<int32_t>();
  float* loss = a.loss.as<float>();
  const int64_t width = a.logits.shape[1];
  for (int64_t n = begin; n < end; n++) {
    T* x = logits[n];
    const int32_t target = targets[n];
    if (target < 0) {
      loss[n] = 0;
      if (a.backward) std::memset(static_cast<void*>(x), 0, size_t(width) * sizeof(T));
      continue;
    }
    const float m = row_max(x, a.vocab), at_target = float(x[target]);
    float* terms = kept;
    if constexpr (std::is_same_v<T, float>) terms = x;
    const float z = a.backward ? sum_exp<true>(x, m, a.vocab, terms) : sum_exp<false>(x, m, a.vocab, terms);
    loss[n] = float(std::log(double(z)) - (double(at_target) - double(m)));
    if (!a.backward) continue;
    const VF scale = fill(a.grad_scale / z);
    const float own = terms[target] * (a.grad_scale / z) - a.grad_scale;
    each_vector(a.vocab, [&](int64_t i, auto part)
                             HWY_ATTR { store(hn::Mul(load(terms + i, part), scale), x + i, part); });
    x[target] = T(own);
    std::memset(static_cast<void*>(x + a.vocab), 0, size_t(width - a.vocab) * sizeof(T));
  }
}

}  // namespace

void cross_entropy(const CrossEntropyArgs& a, float* kept, int64_t begin, int64_t end) {
  a.logits.dtype == DType::bf16 ? rows<bf16>(a, kept, begin, end) : rows<float>(a, kept, begin, end);
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(cross_entropy);

namespace {
int64_t padded_vocab(const CrossEntropyArgs& a) {
  return (a.vocab + 15) / 16 * 16;  // threads never share a cache line
}
}  // namespace

int64_t scratch_bytes(const CrossEntropyArgs& a, const Context& ctx) {
  if (!a.backward || a.logits.dtype == DType::f32) return 0;
  return int64_t(ctx.threads) * padded_vocab(a) * int64_t(sizeof(float));
}
void launch(const CrossEntropyArgs& a, const Tensor& scratch, const Context& ctx) {
  require_indices(a.targets, -1, a.vocab, "cross_entropy: target", "targets are -1 (ignored) or ids, in");
  float* kept = reinterpret_cast<float*>(scratch.data);
  parallel_for(ctx, a.logits.shape[0], row_grain(a.logits.shape[1]),
               [&](int64_t begin, int64_t end, int thread) {
                 float* own = kept ? kept + thread * padded_vocab(a) : nullptr;
                 HWY_DYNAMIC_DISPATCH(cross_entropy)(a, own, begin, end);
               });
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
