// Softmax cross-entropy of columns that are divided over ranks: what a rank says of its columns, and loss and
// gradient from what all ranks said.
//
// A row of logits is read twice for the first (the second time from L2) and once for the second, which draws
// its exponentials again: nothing of size [N, V] is kept in f32. Sums over columns are f32; ranks are merged
// in double, in their order, so every rank has the same loss to the bit.
#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/split_cross_entropy.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/indices.h"
#include "device/cpu/launch.h"
#include "device/cpu/rows.h"
#include "device/cpu/simd-inl.h"

namespace trireme::cpu {
#ifndef TRIREME_DEVICE_CPU_MERGED_ROW
#define TRIREME_DEVICE_CPU_MERGED_ROW
// Of a row over all ranks.
struct MergedRow {
  double largest, sum, target;
};
#endif
}  // namespace trireme::cpu

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

template <class T>
HWY_INLINE float largest(const T* x, int64_t vocab) {
  const VF low = fill(-HUGE_VALF);
  VF acc[4] = {low, low, low, low};
  each_pack(vocab, [&](int64_t i, auto width, auto part) HWY_ATTR {
    for (int k = 0; k < width; k++)
      acc[k] = hn::Max(acc[k], pad(load(x + i + k * kLanes, part), part, -HUGE_VALF));
  });
  return max(acc);
}

template <class T>
HWY_INLINE float sum_exp(const T* x, float m, int64_t vocab) {
  const VF shift = fill(m);
  VF acc[4] = {fill(0), fill(0), fill(0), fill(0)};
  each_pack(vocab, [&](int64_t i, auto width, auto part) HWY_ATTR {
    VF e[width];
    for (int k = 0; k < width; k++) e[k] = hn::Sub(load(x + i + k * kLanes, part), shift);
    exp(e);
    for (int k = 0; k < width; k++) acc[k] = hn::Add(acc[k], pad(e[k], part, 0));
  });
  return sum(acc);
}

template <class T>
void stats_of_rows(const SoftmaxStatsArgs& a, int64_t begin, int64_t end) {
  const Rows<const T> logits = rows_of<const T>(a.logits);
  const int32_t* targets = a.targets.as<int32_t>();
  const int64_t rows = a.logits.shape[0];
  float* stats = a.stats.as<float>();
  for (int64_t n = begin; n < end; n++) {
    const T* x = logits[n];
    const int64_t target = targets[n] - a.first;
    const float m = largest(x, a.vocab);
    stats[n] = m;
    stats[rows + n] = sum_exp(x, m, a.vocab);
    stats[2 * rows + n] = targets[n] >= 0 && target >= 0 && target < a.vocab ? float(x[target]) : 0;
  }
}

// x = exp(x - largest) * factor, less grad_scale at the target.
template <class T>
HWY_INLINE void to_gradient(T* x, const SplitCrossEntropyArgs& a, const MergedRow& row, int64_t target) {
  const bool own = target >= 0 && target < a.vocab;
  const float at_target = own ? float(x[target]) : 0;
  const double factor = double(a.grad_scale) / row.sum;
  const VF shift = fill(float(row.largest)), scale = fill(float(factor));
  each_pack(a.vocab, [&](int64_t i, auto width, auto part) HWY_ATTR {
    VF e[width];
    for (int k = 0; k < width; k++) e[k] = hn::Sub(load(x + i + k * kLanes, part), shift);
    exp(e);
    for (int k = 0; k < width; k++) store(hn::Mul(e[k], scale), x + i + k * kLanes, part);
  });
  if (own) x[target] = T(float(std::exp(double(at_target) - row.largest) * factor - double(a.grad_scale)));
}

template <class T>
void gradient_of_rows(const SplitCrossEntropyArgs& a, const MergedRow* merged, int64_t begin, int64_t end) {
  const Rows<T> logits = rows_of<T>(a.logits);
  const int32_t* targets = a.targets.as<int32_t>();
  const int64_t width = a.logits.shape[1];
  for (int64_t n = begin; n < end; n++) {
    T* x = logits[n];
    const int64_t used = targets[n] < 0 ? 0 : a.vocab;
    if (used > 0) to_gradient(x, a, merged[n - begin], targets[n] - a.first);
    std::memset(static_cast<void*>(x + used), 0, size_t(width - used) * sizeof(T));
  }
}

}  // namespace

void softmax_stats(const SoftmaxStatsArgs& a, int64_t begin, int64_t end) {
  a.logits.dtype == DType::bf16 ? stats_of_rows<bf16>(a, begin, end) : stats_of_rows<float>(a, begin, end);
}
void split_gradient(const SplitCrossEntropyArgs& a, const MergedRow* merged, int64_t begin, int64_t end) {
  a.logits.dtype == DType::bf16 ? gradient_of_rows<bf16>(a, merged, begin, end)
                                : gradient_of_rows<float>(a, merged, begin, end);
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(softmax_stats);
HWY_EXPORT(split_gradient);

namespace {

MergedRow merged_row(const SplitCrossEntropyArgs& a, int64_t n) {
  const int64_t ranks = a.stats.shape[0], rows = a.logits.shape[0];
  const float* stats = a.stats.as<float>();
  auto of = [&](int64_t rank, int64_t what) { return double(stats[(rank * 3 + what) * rows + n]); };
  MergedRow row{.largest = of(0, 0), .sum = 0, .target = 0};
  for (int64_t r = 1; r < ranks; r++) row.largest = std::max(row.largest, of(r, 0));
  for (int64_t r = 0; r < ranks; r++) {
    row.sum += of(r, 1) * std::exp(of(r, 0) - row.largest);
    row.target += of(r, 2);
  }
  return row;
}

constexpr int64_t kRowsAtOnce = 64;  // merged, then passed over

}  // namespace

int64_t scratch_bytes(const SoftmaxStatsArgs&, const Context&) {
  return 0;
}
void launch(const SoftmaxStatsArgs& a, const Tensor&, const Context& ctx) {
  parallel_for(ctx, a.logits.shape[0], row_grain(a.logits.shape[1]), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(softmax_stats)(a, begin, end);
  });
}

int64_t scratch_bytes(const SplitCrossEntropyArgs&, const Context&) {
  return 0;
}
void launch(const SplitCrossEntropyArgs& a, const Tensor&, const Context& ctx) {
  parallel_for(ctx, a.logits.shape[0], row_grain(a.logits.shape[1]), [&](int64_t first, int64_t last, int) {
    MergedRow merged[kRowsAtOnce];
    for (int64_t begin = first; begin < last; begin += kRowsAtOnce) {
      const int64_t end = std::min(last, begin + kRowsAtOnce);
      for (int64_t n = begin; n < end; n++) {
        const MergedRow row = merged[n - begin] = merged_row(a, n);
        a.loss.as<float>()[n] =
            a.targets.as<int32_t>()[n] < 0 ? 0 : float(std::log(row.sum) - (row.target - row.largest));
      }
      if (a.backward) HWY_DYNAMIC_DISPATCH(split_gradient)(a, merged, begin, end);
    }
  });
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
