// Loss scaling for f16 gradients (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2).
//
// f16 ends at 6e-8 below and 65504 above, and most gradients of a language model lie below. So the loss's
// gradient starts `scale` times larger (through Ctx::grad_scale, so the whole backward pass carries it), the
// weights' gradients are summed in f32, and the update divides by the scale. A scale that is too large shows
// as a gradient that is not finite: that step is skipped, the scale falls, and after enough good steps in a
// row it doubles again. The rules are those of PyTorch's GradScaler: a skipped step leaves weights, moments
// and the count of AdamW's bias correction as they were, and costs its batch.
#pragma once
#include <cstdint>

namespace trireme {

struct LossScaleOptions {
  bool dynamic = true;
  double initial = 65536;          // of a fixed scale: the scale
  double backoff = 0.5;            // factor after an overflow, below 1
  int64_t growth_interval = 2000;  // good steps in a row after which the scale doubles
  double least = 1;                // a scale does not fall below
};

// What a checkpoint keeps.
struct LossScaleState {
  double scale = 1;
  int64_t good_steps = 0;  // in a row, since the scale last moved
  int64_t skipped = 0;     // steps of the run that moved nothing
  bool operator==(const LossScaleState&) const = default;
};

class LossScale {
 public:
  static constexpr double kMost = 0x1p64;  // doubling ends there: scaled sums stay far inside f32

  LossScale() = default;  // no scaling: 1 for ever
  explicit LossScale(const LossScaleOptions& o) : active_(true), options_(o), state_{.scale = o.initial} {}

  bool active() const { return active_; }
  bool dynamic() const { return active_ && options_.dynamic; }
  double scale() const { return state_.scale; }
  const LossScaleState& state() const { return state_; }
  // Can a run with these options have come to that state?
  bool plausible(const LossScaleState&) const;
  void restore(const LossScaleState& s) { state_ = s; }

  // A gradient was not finite. True: the step is to be skipped, and the scale has fallen. False: it cannot
  // fall.
  bool overflow();
  void good_step();

 private:
  bool active_ = false;
  LossScaleOptions options_;
  LossScaleState state_;
};

}  // namespace trireme
