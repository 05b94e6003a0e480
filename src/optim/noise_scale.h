// The gradient noise scale: at which batch size does a larger one stop paying? (McCandlish et al. 2018, arXiv
// 1812.06162, appendix A.1.)
//
// The gradient of a batch of n sequences is G + noise of covariance Sigma / n, so its squared norm is on
// average |G|^2 + tr(Sigma) / n. From the squared norms of small batches (b sequences) and of the whole one
// (B sequences) of the same step follow unbiased estimates
//   |G|^2 = (B S_B - b S_b) / (B - b)        tr(Sigma) = (S_b - S_B) / (1/b - 1/B)
// Each is noisy; running means of both are kept, apart, and B_simple = tr(Sigma) / |G|^2 is their quotient,
// in sequences: at a batch of B_simple half of a step's progress is lost to noise.
//
// Independent are sequences, so replicas. Of the ranks of one replica each has a part of its gradient: parts
// of tensors (tp, pp), whose squares add up, or of the sum over its tokens (cp; tp beside experts), which are
// added up first, in a copy. |G|^2 and tr(Sigma) are sums over parameters, so parameters may be measured from
// small batches of their own: experts, whose rows come from several replicas where ep spans them, from the
// batches of the ranks that share an owner.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "tensor/arena.h"
#include "tensor/flat_state.h"

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

  // Of one step, a sample each of parameters with small batches of their own.
  void add(std::span<const NoiseSample>);
  void add(const NoiseSample& s) { add(std::span(&s, 1)); }
  // B_simple in sequences; none before the first measurement, and as long as noise hides the gradient.
  std::optional<double> sequences() const;
  const NoiseScaleState& state() const { return state_; }
  void restore(const NoiseScaleState& s) { state_ = s; }

 private:
  NoiseScaleState state_;
};

// Unbiased, if noisy: what a step adds to the means.
struct NoiseEstimate {
  double squared = 0, trace = 0;  // |G|^2, tr(Sigma)
};
NoiseEstimate estimate_of(const NoiseSample&);

// Which sequences a rank's gradients of a unit are of, before they are added to other replicas'.
struct SmallBatches {
  Communicator* parts = nullptr;  // ranks whose gradients are added up for one batch; null: this one's are it
  bool counts = true;             // is this the rank of them that tells of it?
  bool reduced = true;            // batches are what is reduced; else the step's first microbatch
  int64_t batches = 1;            // a measurement, over all ranks
  double sequences = 0;           // of each
};

// Neighbouring elements of a unit of which several ranks have summands.
struct UnitSum {
  Range of_unit;
  Communicator* group;
};

// Squared norms of gradients before they are added to others': the small batches.
class LocalNorms {
 public:
  // Books one f64 per block of the largest unit, and, with `copy`, its gradients.
  LocalNorms(const ParamSet&, const SmallBatches& rest, const SmallBatches& experts, bool copy, DType grads,
             Arena&);
  void start();
  const SmallBatches& batches(const Unit& u) const { return u.experts ? experts_ : rest_; }
  bool has(size_t unit) const { return seen_[unit] > 0; }  // since start()
  // The padded gradients of a unit, of one small batch. sums: what is not added up yet.
  void add(Device&, const ParamSet&, size_t unit, const Tensor& gradients, std::span<const UnitSum> sums,
           Stream);
  double sum(bool experts) const { return sums_of_[experts]; }  // of those that this rank tells of
  double squares(Device&, const Tensor&, Stream);

 private:
  SmallBatches rest_, experts_;
  Owned sums_, copy_;
  std::vector<double> host_;
  std::vector<char> seen_;  // by unit
  std::array<double, 2> sums_of_{};
};

}  // namespace trireme
