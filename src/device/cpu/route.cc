// The router's choices and their gradient (ops.h), token by token, in f32.
//
//   softmax: s_i = exp(x_i - m) / Z       sigmoid: s_i = 1 / (1 + exp(-x_i))
//   weight of choice j: w_j = c s_j / D,  D = sum over choices of s + 1e-20, or 1 without `normalise`
// Backward, with g_j = dloss/dw_j:
//   dloss/ds_j = c (g_j - [normalise] sum_m g_m s_m / D) / D for choices, 0 for the other experts
//   shares p_i = s_i / S, S = sum s (1 with softmax): dloss/ds_i += (b_i - sum_m b_m p_m) / S. With softmax
//     the subtracted sum is a constant, which the next line cancels
//   softmax: dx_i = s_i (ds_i - sum_m s_m ds_m)       sigmoid: dx_i = ds_i s_i (1 - s_i)
//   z: dx_i += 2 z lse softmax_i
// route_shares adds p_i and lse^2 up over the tokens of a unit: what balancing losses are made of.
// Choices are k passes over E keys: E is at most some hundreds, and the loop is a hundredth of the experts'
// arithmetic.
#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/route.cc"
#include "hwy/foreach_target.h"

#include <cfloat>

#include "device/cpu/indices.h"
#include "device/cpu/launch.h"
#include "device/cpu/rows.h"
#include "device/cpu/simd-inl.h"

namespace trireme::cpu {
#ifndef TRIREME_DEVICE_CPU_ROUTE_ROWS
#define TRIREME_DEVICE_CPU_ROUTE_ROWS
// A thread's scratch, f32, each [E] padded to whole cache lines.
struct RouteRows {
  float *scores, *keys, *soft;
};
inline constexpr float kTinySum = 1e-20f;  // beside a sum of scores: all of them may have underflowed
#endif
}  // namespace trireme::cpu

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

HWY_INLINE float row_sum(const float* x, int64_t n) {
  VF acc = fill(0);
  each_vector(n, [&](int64_t i, auto part) HWY_ATTR { acc = hn::Add(acc, load(x + i, part)); });
  return sum(acc);
}
HWY_INLINE float row_dot(const float* x, const float* y, int64_t n) {
  VF acc = fill(0);
  each_vector(
      n, [&](int64_t i, auto part) HWY_ATTR { acc = hn::MulAdd(load(x + i, part), load(y + i, part), acc); });
  return sum(acc);
}

// s = softmax(x); returns logsumexp(x).
HWY_INLINE float softmax(const float* x, float* s, int64_t n) {
  VF top = fill(-HUGE_VALF);
  each_vector(n, [&](int64_t i, auto part)
                     HWY_ATTR { top = hn::Max(top, pad(load(x + i, part), part, -HUGE_VALF)); });
  const float m = hn::GetLane(hn::MaxOfLanes(DF(), top));
  each_vector(n, [&](int64_t i, auto part)
                     HWY_ATTR { store(exp(hn::Sub(load(x + i, part), fill(m))), s + i, part); });
  const float z = row_sum(s, n);
  each_vector(
      n, [&](int64_t i, auto part) HWY_ATTR { store(hn::Div(load(s + i, part), fill(z)), s + i, part); });
  return m + std::log(z);
}
HWY_INLINE void sigmoid(const float* x, float* s, int64_t n) {
  each_vector(n, [&](int64_t i, auto part)
                     HWY_ATTR { store(sigmoid_of_exp(exp(hn::Neg(load(x + i, part)))).s, s + i, part); });
}

// The order of a token's scores is that of its logits, which no rounding or underflow makes equal.
bool chosen_by_logits(const RouteArgs& a) {
  return !a.bias && !(a.groups > 1 && a.group_pairs);
}

constexpr float kLast = -FLT_MAX;     // what is not finite is chosen last
constexpr float kTaken = -HUGE_VALF;  // and what is taken, never

int64_t best_of(const float* keys, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; i++)
    if (keys[i] > keys[best]) best = i;
  return best;
}

// Keys of groups that are not among the worthiest become kTaken.
void limit_groups(const RouteArgs& a, float* keys, float* worth) {
  const int64_t size = a.logits.shape[1] / a.groups;
  for (int64_t g = 0; g < a.groups; g++) {
    const float* own = keys + g * size;
    float first = kTaken, second = kTaken;
    for (int64_t i = 0; i < size; i++) {
      if (own[i] > first)
        second = first, first = own[i];
      else if (own[i] > second)
        second = own[i];
    }
    worth[g] = a.group_pairs ? std::max(first + second, kLast) : first;
  }
  for (int64_t t = 0; t < a.top_groups; t++) worth[best_of(worth, a.groups)] = kTaken;
  for (int64_t g = 0; g < a.groups; g++)
    if (worth[g] != kTaken) std::fill_n(keys + g * size, size, kTaken);
}

// The choices of one token with logits x.
void choose(const RouteArgs& a, const float* x, const RouteRows& own, int32_t* ids, int64_t k) {
  const int64_t experts = a.logits.shape[1];
  const float* by = chosen_by_logits(a) ? x : own.scores;
  for (int64_t i = 0; i < experts; i++) {
    const float key = by[i] + (a.bias ? a.bias.as<float>()[i] : 0);
    own.keys[i] = std::isfinite(key) ? key : kLast;
  }
  if (a.groups > 1) limit_groups(a, own.keys, own.soft);
  for (int64_t j = 0; j < k; j++) {
    const int64_t best = best_of(own.keys, experts);
    own.keys[best] = kTaken;
    ids[j] = int32_t(best);
  }
}

}  // namespace

void route(const RouteArgs& a, const RouteRows& own, int64_t begin, int64_t end) {
  const int64_t experts = a.logits.shape[1], k = a.ids.shape[1];
  for (int64_t n = begin; n < end; n++) {
    const float* x = a.logits.as<float>() + n * experts;
    a.score == RouteScore::softmax ? (void)softmax(x, own.scores, experts) : sigmoid(x, own.scores, experts);
    int32_t* ids = a.ids.as<int32_t>() + n * k;
    if (!a.given) choose(a, x, own, ids, k);
    float* weights = a.weights.as<float>() + n * k;
    float total = kTinySum;
    for (int64_t j = 0; j < k; j++) {
      weights[j] = own.scores[ids[j]];
      total += weights[j];
    }
    const float scale = a.normalise ? a.scale / total : a.scale;
    for (int64_t j = 0; j < k; j++) weights[j] *= scale;
  }
}

void route_backward(const RouteBackwardArgs& a, const RouteRows& own, int64_t begin, int64_t end) {
  const int64_t experts = a.logits.shape[1], k = a.ids.shape[1];
  const bool soft = a.score == RouteScore::softmax;
  float *s = own.scores, *ds = own.keys;
  for (int64_t n = begin; n < end; n++) {
    const float* x = a.logits.as<float>() + n * experts;
    const float lse = soft ? softmax(x, s, experts) : (sigmoid(x, s, experts), 0.0f);
    std::fill_n(ds, experts, 0.0f);
    if (a.balance) {
      const int64_t unit = a.unit > 0 ? (a.first + n) / a.unit : n / (a.logits.shape[0] / a.balance.shape[0]);
      const float* b = a.balance.as<float>() + unit * experts;
      const float total = soft ? 1 : row_sum(s, experts) + kTinySum;
      const float mean = soft ? 0 : row_dot(b, s, experts) / total;
      for (int64_t i = 0; i < experts; i++) ds[i] = (b[i] - mean) / total;
    }
    const int32_t* ids = a.ids.as<int32_t>() + n * k;
    const float* g = a.dweights.as<float>() + n * k;
    float total = kTinySum, weighted = 0;
    for (int64_t j = 0; j < k; j++) total += s[ids[j]], weighted += g[j] * s[ids[j]];
    const float scale = a.normalise ? a.scale / total : a.scale, mean = a.normalise ? weighted / total : 0;
    for (int64_t j = 0; j < k; j++) ds[ids[j]] += scale * (g[j] - mean);
    float* dx = a.dlogits.as<float>() + n * experts;
    const float dot = soft ? row_dot(s, ds, experts) : 0;
    for (int64_t i = 0; i < experts; i++) dx[i] = soft ? s[i] * (ds[i] - dot) : ds[i] * s[i] * (1 - s[i]);
    if (a.z_scale == 0) continue;
    const float log_sum = soft ? lse : softmax(x, own.soft, experts);
    const float* p = soft ? s : own.soft;
    for (int64_t i = 0; i < experts; i++) dx[i] += 2 * a.z_scale * log_sum * p[i];
  }
}

// Units [begin, end): each is one thread's, tokens in ascending order, so no bit depends on the threads.
void route_shares(const RouteSharesArgs& a, const RouteRows& own, int64_t begin, int64_t end) {
  const int64_t tokens = a.logits.shape[0], experts = a.logits.shape[1], k = a.ids.shape[1];
  const bool soft = a.score == RouteScore::softmax;
  for (int64_t u = begin; u < end; u++) {
    float *choices = a.choices.as<float>() + u * experts, *shares = a.shares.as<float>() + u * experts;
    std::fill_n(choices, experts, 0.0f);
    std::fill_n(shares, experts, 0.0f);
    double squares = 0;
    const int64_t first = std::max<int64_t>(0, u * a.unit - a.first),
                  last = std::min(tokens, (u + 1) * a.unit - a.first);
    for (int64_t n = first; n < last; n++) {
      const float* x = a.logits.as<float>() + n * experts;
      const double lse = softmax(x, own.scores, experts);
      squares += lse * lse;
      if (!soft) sigmoid(x, own.scores, experts);
      const float total = soft ? 1 : row_sum(own.scores, experts) + kTinySum;
      each_vector(experts, [&](int64_t i, auto part) HWY_ATTR {
        store(hn::Add(load(shares + i, part), hn::Div(load(own.scores + i, part), fill(total))), shares + i,
              part);
      });
      for (int64_t j = 0; j < k; j++) choices[a.ids.as<int32_t>()[n * k + j]]++;
    }
    a.squares.as<float>()[u] = float(squares);
  }
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(route);
HWY_EXPORT(route_backward);
HWY_EXPORT(route_shares);

namespace {
int64_t padded_experts(int64_t e) {
  return (e + 15) / 16 * 16;
}
int64_t rows_bytes(int64_t experts, const Context& ctx) {
  return int64_t(ctx.threads) * 3 * padded_experts(experts) * int64_t(sizeof(float));
}
RouteRows rows_of_thread(const Tensor& scratch, int64_t experts, int thread) {
  const int64_t n = padded_experts(experts);
  float* at = reinterpret_cast<float*>(scratch.data) + thread * 3 * n;
  return {at, at + n, at + 2 * n};
}
}  // namespace

int64_t scratch_bytes(const RouteArgs& a, const Context& ctx) {
  return rows_bytes(a.logits.shape[1], ctx);
}
void launch(const RouteArgs& a, const Tensor& scratch, const Context& ctx) {
  const int64_t experts = a.logits.shape[1];
  if (a.given) require_indices(a.ids, 0, experts, "route: expert", "the router has");
  parallel_for(ctx, a.logits.shape[0], row_grain(4 * experts), [&](int64_t begin, int64_t end, int thread) {
    HWY_DYNAMIC_DISPATCH(route)(a, rows_of_thread(scratch, experts, thread), begin, end);
  });
}
int64_t scratch_bytes(const RouteBackwardArgs& a, const Context& ctx) {
  return rows_bytes(a.logits.shape[1], ctx);
}
void launch(const RouteBackwardArgs& a, const Tensor& scratch, const Context& ctx) {
  const int64_t experts = a.logits.shape[1];
  require_indices(a.ids, 0, experts, "route_backward: expert", "the router has");
  parallel_for(ctx, a.logits.shape[0], row_grain(4 * experts), [&](int64_t begin, int64_t end, int thread) {
    HWY_DYNAMIC_DISPATCH(route_backward)(a, rows_of_thread(scratch, experts, thread), begin, end);
  });
}
int64_t scratch_bytes(const RouteSharesArgs& a, const Context& ctx) {
  return rows_bytes(a.logits.shape[1], ctx);
}
void launch(const RouteSharesArgs& a, const Tensor& scratch, const Context& ctx) {
  const int64_t experts = a.logits.shape[1];
  require_indices(a.ids, 0, experts, "route_shares: expert", "the router has");
  parallel_for(ctx, a.choices.shape[0], row_grain(8 * experts * a.unit),
               [&](int64_t begin, int64_t end, int thread) {
                 HWY_DYNAMIC_DISPATCH(route_shares)(a, rows_of_thread(scratch, experts, thread), begin, end);
               });
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
