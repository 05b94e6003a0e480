#include "optim/noise_scale.h"

#include <algorithm>
#include <cmath>

#include "optim/grad_norm.h"

namespace trireme {

void NoiseScale::add(const NoiseSample& s) {
  require(s.small_sequences > 0 && s.small_sequences < s.big_sequences,
          "a noise scale is measured from a part of a batch");
  if (!std::isfinite(s.small) || !std::isfinite(s.big)) return;  // a step that moved nothing
  const double b = s.small_sequences, all = s.big_sequences;
  state_.squared = kDecay * state_.squared + (1 - kDecay) * (all * s.big - b * s.small) / (all - b);
  state_.trace = kDecay * state_.trace + (1 - kDecay) * (s.small - s.big) / (1 / b - 1 / all);
  state_.weight = kDecay * state_.weight + (1 - kDecay);
}

std::optional<double> NoiseScale::sequences() const {
  if (state_.weight <= 0 || state_.squared <= 0 || state_.trace < 0) return {};
  return state_.trace / state_.squared;
}

LocalNorms::LocalNorms(const ParamSet& set, Arena& arena) {
  int64_t n = 0;
  for (const Unit& u : set.units) n = std::max(n, flat_blocks(u.padded));
  sums_ = Owned(arena, Bucket::scratch, {n}, DType::f64);
  host_.resize(size_t(n));
}

void LocalNorms::add(Device& device, const Tensor& gradients, Stream stream) {
  units_++;
  if (gradients.numel() == 0) return;
  const Tensor sums = sums_->narrow(0, 0, flat_blocks(gradients.numel()));
  device.kernels().run(SquareSumsArgs{.x = gradients, .sums = sums}, stream);
  std::span<double> values = std::span(host_).first(size_t(sums.numel()));
  device.download(values.data(), sums);
  if (device.has_data()) sum_ += order_independent_sum(values);
}

}  // namespace trireme
