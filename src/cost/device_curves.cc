#include "cost/device_curves.h"

namespace trireme {
namespace {

// docs/score.md has the measurements that each is fitted to, and what is left of them.
constexpr AttentionCurve kFused = {"cuDNN", 365, 0.83}, kFirst = {"FlashAttention 1", 310, 1},
                         kSecond = {"FlashAttention 2", 510, 0.88};
constexpr double kFirstRate = 0.428;  // relative to FlashAttention 2's

// Of a backward pass, which computes scores again and has 2.5 times the products, to a forward one: measured
// alike of FlashAttention 2 and 3 and of cuDNN.
constexpr double kBackward = 2.84, kBoth = 3.5;

bool second_is_fastest(const DeviceFigures& d) {
  return d.attention2 >= d.attention;
}

}  // namespace

const AttentionCurve& attention_curve(const DeviceFigures& d, AttentionKind fused) {
  if (fused == AttentionKind::flash1) return kFirst;
  return fused == AttentionKind::flash2 || second_is_fastest(d) ? kSecond : kFused;
}

double attention_peak(const DeviceFigures& d, AttentionKind fused) {
  const double second = d.attention2 > 0 ? d.attention2 : d.attention;
  if (fused == AttentionKind::flash1) return kFirstRate * second;
  return fused == AttentionKind::flash2 ? second : d.attention;
}

AttentionSeconds attention_seconds(const DeviceFigures& d, AttentionKind fused, double flops, double seq,
                                   double head_dim, double relative) {
  constexpr double kLongHead = 96;
  const AttentionCurve& c = attention_curve(d, fused);
  const double rate = attention_peak(d, fused) * relative * seq / (seq + c.half_keys) *
                      (head_dim >= kLongHead ? 1 : c.short_heads);
  const double forward = kBoth * flops / rate / (1 + kBackward);
  return {forward, kBackward * forward};
}

}  // namespace trireme
