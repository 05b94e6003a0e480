// The gradient noise scale: at which batch size does a larger one stop paying? (McCandlish et al. 2018, arXiv
// 1812.06162, appendix A.1.)
//
// The gradient of a batch of n sequences is G + noise of covariance Sigma / n, so its squared norm is on
// average |G|^2 + tr(Sigma) / n. From the squared norms of small batches (b sequences) and of the whole one
// (B sequences) of the same step follow unbiased estimates
//   |G|^2 = (B S_B - b S_b) / (B - b)        tr(Sigma) = (S_b - S_B) / (1/b - 1/B)
// Each is noisy; running means of both are kept, apart, and B_simple = tr(Sigma) / |G|^2 is their quotient,
// in sequences: at a batch of B_simple half of a step's progress is lost to noise.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "device/device.h"
#include "optim/optimizer.h"
#include "tensor/arena.h"

namespace trireme {

// One measurement. Norms are of mean gradients.
struct NoiseSample {
  double small = 0, big = 0;  // squared norms, the first a mean over small batches
  double small_sequences = 0, big_sequences = 0;
};

// What a checkpoint keeps: sums of weighted estimates, and of their weights.
struct NoiseScaleState {
  double squared = 0, trace = 0, weight = 0;
  bool operator==(const NoiseScaleState&) const = default;
};

class NoiseScale {
 public:
  static constexpr double kDecay = 0.95;  // of older measurements, each time

  void add(const NoiseSample&);
  // B_simple in sequences; none before the first measurement, and as long as noise hides the gradient.
  std::optional<double> sequences() const;
  const NoiseScaleState& state() const { return state_; }
  void restore(const NoiseScaleState& s) { state_ = s; }

 private:
  NoiseScaleState state_;
};

// Squared norms of gradients before they are added to others': the small batches.
class LocalNorms {
 public:
  // Books one f64 per block of the largest unit.
  LocalNorms(const ParamSet&, Arena&);
  void start() { sum_ = 0, units_ = 0; }
  void add(Device&, const Tensor& gradients, Stream);  // of a unit, of one small batch
  double sum() const { return sum_; }                  // over units and small batches
  int64_t units() const { return units_; }             // added since start()

 private:
  Owned sums_;
  std::vector<double> host_;
  double sum_ = 0;
  int64_t units_ = 0;
};

}  // namespace trireme
