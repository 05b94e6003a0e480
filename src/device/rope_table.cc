#include "device/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/error.h"

namespace trireme {

RopeStretch rope_scaling_from_name(std::string_view name) {
  if (name == "none") return RopeStretch::none;
  if (name == "linear") return RopeStretch::linear;
  if (name == "llama3") return RopeStretch::llama3;
  if (name == "yarn") return RopeStretch::yarn;
  bad_request("rope_scaling.type = '{}' must be none, linear, llama3 or yarn", name);
}

namespace {
// transformers' _compute_llama3_parameters, one f32 rounding for each of its tensor operations. PyTorch
// computes `scalar / tensor` as reciprocal(tensor) * scalar.
float llama3(const RopeAngles& a, float frequency) {
  float wavelength = 1.0f / frequency * float(2 * std::numbers::pi);
  const double context = double(a.original_max_positions);
  if (wavelength > float(context / a.low_freq_factor)) return frequency / float(a.factor);
  if (wavelength < float(context / a.high_freq_factor)) return frequency;
  float smooth = 1.0f / wavelength * float(context) - float(a.low_freq_factor);
  smooth = smooth / float(a.high_freq_factor - a.low_freq_factor);
  const float slow = (1.0f - smooth) * frequency / float(a.factor), fast = smooth * frequency;
  return slow + fast;
}
// transformers' _compute_yarn_parameters: pairs up to `low` are kept, those from `high` on divided by factor
// (equations 17 to 19, with the ramp over the pair's number). The pair that turns so often in the context:
double pair_that_turns(const RopeAngles& a, double times, int64_t head_dim) {
  return double(head_dim) * std::log(double(a.original_max_positions) / (times * 2 * std::numbers::pi)) /
         (2 * std::log(a.theta));
}
struct Ramp {
  double low, high;
};
Ramp yarn_ramp(const RopeAngles& a, int64_t head_dim) {
  const double low = std::max(0.0, std::floor(pair_that_turns(a, a.beta_fast, head_dim)));
  const double high = std::min(double(head_dim - 1), std::ceil(pair_that_turns(a, a.beta_slow, head_dim)));
  return {low, low == high ? high + 0.001 : high};
}
float yarn(const RopeAngles& a, const Ramp& ramp, int64_t pair, float period) {
  const float stretched =
      std::clamp((float(pair) - float(ramp.low)) / float(ramp.high - ramp.low), 0.0f, 1.0f);
  const float keep = 1.0f - stretched;
  const float slow = 1.0f / (float(a.factor) * period) * (1.0f - keep), fast = 1.0f / period * keep;
  return slow + fast;
}
}  // namespace

YarnFactors yarn_factors(double factor, double mscale, double mscale_all_dim, double attention_factor) {
  auto m = [&](double weight) { return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1; };
  const double all = m(mscale_all_dim);
  YarnFactors f{.amplitude = attention_factor, .scores = mscale_all_dim > 0 ? all * all : 1};
  if (attention_factor == 0) f.amplitude = mscale > 0 && mscale_all_dim > 0 ? m(mscale) / all : m(1);
  return f;
}

void rope_frequencies(const RopeAngles& a, int64_t head_dim, std::span<float> frequency) {
  require(head_dim > 0 && head_dim % 2 == 0 && int64_t(frequency.size()) == head_dim / 2,
          "rope frequencies need an even head_dim and head_dim / 2 places");
  const Ramp ramp = a.scaling == RopeStretch::yarn ? yarn_ramp(a, head_dim) : Ramp{};
  for (int64_t i = 0; i < head_dim / 2; i++) {
    const float exponent = float(2 * i) / float(head_dim);
    const float period = float(std::pow(double(float(a.theta)), double(exponent)));
    float f = 1.0f / period;
    if (a.scaling == RopeStretch::yarn) f = yarn(a, ramp, i, period);
    if (a.scaling == RopeStretch::linear) f = f / float(a.factor);
    if (a.scaling == RopeStretch::llama3) f = llama3(a, f);
    frequency[size_t(i)] = f;
  }
}

void rope_table(const RopeAngles& a, int64_t positions, int64_t head_dim, std::span<float> cos,
                std::span<float> sin) {
  std::vector<float> frequency(size_t(head_dim / 2));
  rope_frequencies(a, head_dim, frequency);
  const size_t half = frequency.size();
  require(int64_t(cos.size()) == positions * int64_t(half) && sin.size() == cos.size(),
          "a rope table has positions x head_dim / 2 places");
  for (int64_t p = 0; p < positions; p++)
    for (size_t i = 0; i < half; i++) {
      const double angle = float(p) * frequency[i];  // the f32 product
      cos[size_t(p) * half + i] = float(std::cos(angle)) * float(a.amplitude);
      sin[size_t(p) * half + i] = float(std::sin(angle)) * float(a.amplitude);
    }
}

}  // namespace trireme
