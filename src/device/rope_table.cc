#include "device/rope_table.h"

#include <cmath>
#include <numbers>
#include <vector>

#include "base/error.h"

namespace trireme {

RopeStretch rope_scaling_from_name(std::string_view name) {
  if (name == "none") return RopeStretch::none;
  if (name == "linear") return RopeStretch::linear;
  if (name == "llama3") return RopeStretch::llama3;
  bad_request("rope_scaling.type = '{}' must be none, linear or llama3", name);
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
}  // namespace

void rope_frequencies(const RopeAngles& a, int64_t head_dim, std::span<float> frequency) {
  require(head_dim > 0 && head_dim % 2 == 0 && int64_t(frequency.size()) == head_dim / 2,
          "rope frequencies need an even head_dim and head_dim / 2 places");
  for (int64_t i = 0; i < head_dim / 2; i++) {
    const float exponent = float(2 * i) / float(head_dim);
    float f = 1.0f / float(std::pow(double(float(a.theta)), double(exponent)));
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
      cos[size_t(p) * half + i] = float(std::cos(angle));
      sin[size_t(p) * half + i] = float(std::sin(angle));
    }
}

}  // namespace trireme
