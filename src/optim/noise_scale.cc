#include "optim/noise_scale.h"

#include <algorithm>
#include <cmath>

#include "optim/grad_norm.h"

namespace trireme {

NoiseEstimate estimate_of(const NoiseSample& s) {
  require(s.small_sequences > 0 && s.small_sequences < s.big_sequences,
          "a noise scale is measured from a part of a batch");
  const double b = s.small_sequences, all = s.big_sequences;
  return {.squared = (all * s.big - b * s.small) / (all - b), .trace = (s.small - s.big) / (1 / b - 1 / all)};
}

void NoiseScale::add(std::span<const NoiseSample> samples) {
  NoiseEstimate sum;
  for (const NoiseSample& s : samples) {
    const NoiseEstimate e = estimate_of(s);
    if (!std::isfinite(s.small) || !std::isfinite(s.big)) return;  // a step that moved nothing
    sum.squared += e.squared, sum.trace += e.trace;
  }
  state_.squared = kDecay * state_.squared + (1 - kDecay) * sum.squared;
  state_.trace = kDecay * state_.trace + (1 - kDecay) * sum.trace;
  state_.weight = kDecay * state_.weight + (1 - kDecay);
}

std::optional<double> NoiseScale::sequences() const {
  if (state_.weight <= 0 || state_.squared <= 0 || state_.trace < 0) return {};
  return state_.trace / state_.squared;
}

LocalNorms::LocalNorms(const ParamSet& set, const SmallBatches& rest, const SmallBatches& experts, bool copy,
                       DType grads, Arena& arena)
    : rest_(rest), experts_(experts), seen_(set.units.size()) {
  int64_t most = 0;
  for (const Unit& u : set.units) most = std::max(most, u.padded);
  sums_ = Owned(arena, Bucket::scratch, {flat_blocks(most)}, DType::f64);
  if (copy) copy_ = Owned(arena, Bucket::scratch, {most}, grads);
  host_.resize(size_t(flat_blocks(most)));
}

void LocalNorms::start() {
  sums_of_ = {};
  std::fill(seen_.begin(), seen_.end(), 0);
}

double LocalNorms::squares(Device& device, const Tensor& x, Stream stream) {
  if (x.numel() == 0) return 0;
  const Tensor sums = sums_->narrow(0, 0, flat_blocks(x.numel()));
  device.kernels().run(SquareSumsArgs{.x = x, .sums = sums}, stream);
  std::span<double> values = std::span(host_).first(size_t(sums.numel()));
  device.download(values.data(), sums);
  return device.has_data() ? order_independent_sum(values) : 0;
}

void LocalNorms::add(Device& device, const ParamSet& set, size_t unit, const Tensor& gradients,
                     std::span<const UnitSum> sums, Stream stream) {
  const Unit& u = set.units[unit];
  const SmallBatches& b = batches(u);
  seen_[unit] = 1;
  Tensor x = gradients;
  if (b.parts || !sums.empty()) {  // training goes on with what it had
    x = copy_->narrow(0, 0, gradients.numel());
    device.copy(x, gradients, stream);
    for (const UnitSum& s : sums)
      s.group->all_reduce({.buf = x.narrow(0, s.of_unit.begin, s.of_unit.size())}, stream);
    if (b.parts) b.parts->all_reduce({.buf = x}, stream);
  }
  if (!b.counts || x.numel() == 0) return;
  // What several ranks of tp hold alike is counted once.
  for (size_t i = u.first, j; i < u.last; i = j) {
    for (j = i + 1; j < u.last && set.params[j].answers == set.params[i].answers;) j++;
    if (!set.params[i].answers) continue;
    const int64_t begin = set.params[i].offset - u.offset;
    const int64_t end = j == u.last ? u.padded : set.params[j].offset - u.offset;
    sums_of_[u.experts] += squares(device, x.narrow(0, begin, end - begin), stream);
  }
}

}  // namespace trireme
