// The router's choices and their gradient (ops.h), a warp a token, in f32.
//
//   softmax: s_i = exp(x_i - m) / Z       sigmoid: s_i = 1 / (1 + exp(-x_i))
//   weight of choice j: w_j = c s_j / D,  D = sum over choices of s + 1e-20, or 1 without `normalise`
// Backward, with g_j = dloss/dw_j:
//   dloss/ds_j = c (g_j - [normalise] sum_m g_m s_m / D) / D for choices, 0 for the other experts
//   shares p_i = s_i / S, S = sum s (1 with softmax): dloss/ds_i += (b_i - sum_m b_m p_m) / S. With softmax
//     the subtracted sum is a constant, which the next line cancels
//   softmax: dx_i = s_i (ds_i - sum_m s_m ds_m)       sigmoid: dx_i = ds_i s_i (1 - s_i)
//   z: dx_i += 2 z lse softmax_i
// route_shares adds p_i and lse^2 up over the tokens of a unit, a block a unit, in ascending order of tokens.
// Lane l holds experts l, l + 32, ...; sums over experts are fixed trees; k passes over E keys choose.
#include <cfloat>

#include "device/cuda/indices.h"
#include "device/cuda/reduce.cuh"

namespace trireme::cuda {
namespace {

constexpr float kTinySum = 1e-20f;      // beside a sum of scores: all of them may have underflowed
constexpr float kLast = -FLT_MAX;       // what is not finite is chosen last
constexpr float kTaken = -HUGE_VALF;    // and what is taken, never
constexpr int64_t kMostExperts = 1024;  // three rows of f32 in shared memory
constexpr int kShareWarps = 8;          // of a unit's block: tokens at once

__device__ __forceinline__ unsigned lane_of() {
  return threadIdx.x % 32;
}

// f(i) for this lane's experts.
template <class F>
__device__ __forceinline__ void each_expert(int64_t experts, const F& f) {
  for (int64_t i = lane_of(); i < experts; i += 32) f(i);
}

// s = softmax(x); returns logsumexp(x).
__device__ __forceinline__ float softmax(const float* x, float* s, int64_t n) {
  float m = -HUGE_VALF, z = 0;
  each_expert(n, [&](int64_t i) { m = fmaxf(m, x[i]); });
  m = warp_max(m);
  each_expert(n, [&](int64_t i) { z += s[i] = expf(x[i] - m); });
  z = warp_sum(z);
  each_expert(n, [&](int64_t i) { s[i] = s[i] / z; });
  return m + logf(z);
}
__device__ __forceinline__ void sigmoid(const float* x, float* s, int64_t n) {
  each_expert(n, [&](int64_t i) { s[i] = 1 / (1 + expf(-x[i])); });
}
__device__ __forceinline__ float row_sum(const float* x, int64_t n) {
  float t = 0;
  each_expert(n, [&](int64_t i) { t += x[i]; });
  return warp_sum(t);
}
__device__ __forceinline__ float row_dot(const float* x, const float* y, int64_t n) {
  float t = 0;
  each_expert(n, [&](int64_t i) { t = fmaf(x[i], y[i], t); });
  return warp_sum(t);
}

// The first of the largest of keys[0, n).
__device__ __forceinline__ int64_t best_of(const float* keys, int64_t n) {
  float best = kTaken;
  int at = int(n);
  each_expert(n, [&](int64_t i) {
    if (keys[i] > best || at == int(n)) best = keys[i], at = int(i);
  });
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, best, step);
    const int other_at = __shfl_xor_sync(kAllLanes, at, step);
    if (other > best || (other == best && other_at < at)) best = other, at = other_at;
  }
  return at;
}

struct RouteRows {
  const float *logits, *bias;
  int32_t* ids;
  float* weights;
  int64_t experts, k, groups, top_groups;
  float scale;
  bool softmax, normalise, group_pairs, given;
  // The order of a token's scores is that of its logits, which no rounding or underflow makes equal.
  __device__ bool by_logits() const { return !bias && !(groups > 1 && group_pairs); }
};

// Keys of groups that are not among the worthiest become kTaken. worth: room for a number a group.
__device__ __forceinline__ void limit_groups(const RouteRows& a, float* keys, float* worth) {
  const int64_t size = a.experts / a.groups;
  each_expert(a.groups, [&](int64_t g) {
    float first = kTaken, second = kTaken;
    for (int64_t i = g * size; i < (g + 1) * size; i++) {
      if (keys[i] > first)
        second = first, first = keys[i];
      else if (keys[i] > second)
        second = keys[i];
    }
    worth[g] = a.group_pairs ? fmaxf(first + second, kLast) : first;
  });
  __syncwarp();
  for (int64_t t = 0; t < a.top_groups; t++) {
    const int64_t best = best_of(worth, a.groups);
    __syncwarp();
    if (lane_of() == 0) worth[best] = kTaken;
    __syncwarp();
  }
  each_expert(a.experts, [&](int64_t i) {
    if (worth[i / size] != kTaken) keys[i] = kTaken;
  });
  __syncwarp();
}

__global__ void __launch_bounds__(32) route_tokens(RouteRows a) {
  float *scores = dynamic_shared<float>(), *keys = scores + a.experts, *worth = keys + a.experts;
  const int64_t token = blockIdx.x;
  const float* x = a.logits + token * a.experts;
  int32_t* ids = a.ids + token * a.k;
  if (a.softmax)
    softmax(x, scores, a.experts);
  else
    sigmoid(x, scores, a.experts);
  __syncwarp();
  if (!a.given) {
    const float* by = a.by_logits() ? x : scores;
    each_expert(a.experts, [&](int64_t i) {
      const float key = by[i] + (a.bias ? a.bias[i] : 0.0f);
      keys[i] = fabsf(key) <= FLT_MAX ? key : kLast;
    });
    __syncwarp();
    if (a.groups > 1) limit_groups(a, keys, worth);
    for (int64_t j = 0; j < a.k; j++) {
      const int64_t best = best_of(keys, a.experts);
      __syncwarp();
      if (lane_of() == 0) keys[best] = kTaken, ids[j] = int32_t(best);
      __syncwarp();
    }
  }
  if (lane_of() > 0) return;
  float* weights = a.weights + token * a.k;
  float total = kTinySum;
  for (int64_t j = 0; j < a.k; j++) {
    const int64_t e = ids[j];
    weights[j] = e >= 0 && e < a.experts ? scores[e] : 0.0f;
    total += weights[j];
  }
  const float scale = a.normalise ? a.scale / total : a.scale;
  for (int64_t j = 0; j < a.k; j++) weights[j] *= scale;
}

struct RouteGradient {
  const float *logits, *dweights, *balance;  // balance may be null
  const int32_t* ids;
  float* dlogits;
  int64_t experts, k, unit, first, tokens_a_unit;
  float scale, z_scale;
  bool softmax, normalise;
};

__global__ void __launch_bounds__(32) route_gradient(RouteGradient a) {
  float *s = dynamic_shared<float>(), *ds = s + a.experts, *soft = ds + a.experts;
  const int64_t token = blockIdx.x;
  const float* x = a.logits + token * a.experts;
  float lse = 0;
  if (a.softmax)
    lse = softmax(x, s, a.experts);
  else
    sigmoid(x, s, a.experts);
  __syncwarp();
  if (a.balance) {
    const int64_t unit = a.unit > 0 ? (a.first + token) / a.unit : token / a.tokens_a_unit;
    const float* b = a.balance + unit * a.experts;
    const float total = a.softmax ? 1.0f : row_sum(s, a.experts) + kTinySum;
    const float mean = a.softmax ? 0.0f : row_dot(b, s, a.experts) / total;
    each_expert(a.experts, [&](int64_t i) { ds[i] = (b[i] - mean) / total; });
  } else {
    each_expert(a.experts, [&](int64_t i) { ds[i] = 0; });
  }
  __syncwarp();
  if (lane_of() == 0) {
    const int32_t* ids = a.ids + token * a.k;
    const float* g = a.dweights + token * a.k;
    auto known = [&](int64_t j) { return ids[j] >= 0 && ids[j] < a.experts; };
    float total = kTinySum, weighted = 0;
    for (int64_t j = 0; j < a.k; j++)
      if (known(j)) total += s[ids[j]], weighted += g[j] * s[ids[j]];
    const float scale = a.normalise ? a.scale / total : a.scale, mean = a.normalise ? weighted / total : 0.0f;
    for (int64_t j = 0; j < a.k; j++)
      if (known(j)) ds[ids[j]] += scale * (g[j] - mean);
  }
  __syncwarp();
  float* dx = a.dlogits + token * a.experts;
  const float dot = a.softmax ? row_dot(s, ds, a.experts) : 0.0f;
  each_expert(a.experts,
              [&](int64_t i) { dx[i] = a.softmax ? s[i] * (ds[i] - dot) : ds[i] * s[i] * (1 - s[i]); });
  if (a.z_scale == 0) return;
  if (!a.softmax) lse = softmax(x, soft, a.experts);
  const float* p = a.softmax ? s : soft;  // this lane reads what it wrote
  each_expert(a.experts, [&](int64_t i) { dx[i] += 2 * a.z_scale * lse * p[i]; });
}

struct RouteUnits {
  const float* logits;
  const int32_t* ids;
  float *choices, *shares, *squares;
  int64_t tokens, experts, k, unit, first;
  bool softmax;
};

// scores [kShareWarps, E] of as many tokens at once, then added expert by expert in order of tokens.
__global__ void __launch_bounds__(kShareWarps * 32) route_units(RouteUnits a) {
  float* scores = dynamic_shared<float>();
  __shared__ float totals[kShareWarps], lse[kShareWarps];
  const int64_t u = blockIdx.x, warp = threadIdx.x / 32;
  float *choices = a.choices + u * a.experts, *shares = a.shares + u * a.experts;
  int64_t first = u * a.unit - a.first, last = first + a.unit;
  if (first < 0) first = 0;
  if (last > a.tokens) last = a.tokens;
  for (int64_t e = threadIdx.x; e < a.experts; e += kShareWarps * 32) choices[e] = 0, shares[e] = 0;
  double squares = 0;
  for (int64_t begin = first; begin < last; begin += kShareWarps) {
    float* own = scores + warp * a.experts;
    if (begin + warp < last) {
      const float* x = a.logits + (begin + warp) * a.experts;
      const float log_sum = softmax(x, own, a.experts);
      if (!a.softmax) sigmoid(x, own, a.experts);
      __syncwarp();
      const float total = a.softmax ? 1.0f : row_sum(own, a.experts) + kTinySum;
      if (lane_of() == 0) totals[warp] = total, lse[warp] = log_sum;
    }
    __syncthreads();
    const int64_t here = last - begin < kShareWarps ? last - begin : kShareWarps;
    for (int64_t e = threadIdx.x; e < a.experts; e += kShareWarps * 32) {
      float share = shares[e], count = choices[e];
      for (int64_t t = 0; t < here; t++) {
        share += scores[t * a.experts + e] / totals[t];
        for (int64_t j = 0; j < a.k; j++) count += a.ids[(begin + t) * a.k + j] == e ? 1.0f : 0.0f;
      }
      shares[e] = share, choices[e] = count;
    }
    if (threadIdx.x == 0)
      for (int64_t t = 0; t < here; t++) squares += double(lse[t]) * double(lse[t]);
    __syncthreads();
  }
  if (threadIdx.x == 0) a.squares[u] = float(squares);
}

int64_t rows_of_experts(int64_t experts, std::string_view op) {
  if (experts > kMostExperts)
    bad_request("op '{}' on CUDA takes at most {} experts, not {}", op, kMostExperts, experts);
  return 3 * experts * int64_t(sizeof(float));
}

}  // namespace

void cuda_launch(const RouteArgs& a, const Tensor&, CudaContext& ctx, cudaStream_t stream) {
  const int64_t experts = a.logits.shape[1];
  if (a.given) check_indices(a.ids, 0, experts, "route: expert", "the router has", ctx, stream);
  const RouteRows r{a.logits.as<float>(),
                    a.bias ? a.bias.as<float>() : nullptr,
                    a.ids.as<int32_t>(),
                    a.weights.as<float>(),
                    experts,
                    a.ids.shape[1],
                    a.groups,
                    a.top_groups,
                    a.scale,
                    a.score == RouteScore::softmax,
                    a.normalise,
                    a.group_pairs,
                    a.given};
  run_blocks(route_tokens, a.logits.shape[0], 32, rows_of_experts(experts, a.kName), stream, r);
}

void cuda_launch(const RouteBackwardArgs& a, const Tensor&, CudaContext& ctx, cudaStream_t stream) {
  const int64_t experts = a.logits.shape[1], tokens = a.logits.shape[0];
  check_indices(a.ids, 0, experts, "route_backward: expert", "the router has", ctx, stream);
  const RouteGradient r{a.logits.as<float>(),
                        a.dweights.as<float>(),
                        a.balance ? a.balance.as<float>() : nullptr,
                        a.ids.as<int32_t>(),
                        a.dlogits.as<float>(),
                        experts,
                        a.ids.shape[1],
                        a.unit,
                        a.first,
                        a.balance ? tokens / a.balance.shape[0] : tokens,
                        a.scale,
                        a.z_scale,
                        a.score == RouteScore::softmax,
                        a.normalise};
  run_blocks(route_gradient, tokens, 32, rows_of_experts(experts, a.kName), stream, r);
}

void cuda_launch(const RouteSharesArgs& a, const Tensor&, CudaContext& ctx, cudaStream_t stream) {
  const int64_t experts = a.logits.shape[1];
  check_indices(a.ids, 0, experts, "route_shares: expert", "the router has", ctx, stream);
  (void)rows_of_experts(experts, a.kName);
  const RouteUnits r{a.logits.as<float>(),
                     a.ids.as<int32_t>(),
                     a.choices.as<float>(),
                     a.shares.as<float>(),
                     a.squares.as<float>(),
                     a.logits.shape[0],
                     experts,
                     a.ids.shape[1],
                     a.unit,
                     a.first,
                     a.score == RouteScore::softmax};
  run_blocks(route_units, a.choices.shape[0], kShareWarps * 32,
             kShareWarps * experts * int64_t(sizeof(float)), stream, r);
}

}  // namespace trireme::cuda
