// The gradient noise scale of a step: gradients of parts of the batch, before they are added to the others'.
//
// Several replicas: what each reduces, its sum over the step (ZeRO 0, 1) or over one microbatch (ZeRO 2, 3).
// One replica adds microbatches in place, in the rounding that training has. So only the first one ever
// exists by itself: one small batch a measurement, no bit of training changed. Experts that are units of
// their own likewise, their replicas being those of edp.
#pragma once
#include <memory>
#include <optional>

#include "optim/grad_sync.h"
#include "optim/noise_scale.h"
#include "program/shape.h"
#include "runtime/stage_parts.h"

namespace trireme {

class StepNoise : StageParts {
 public:
  // Takes memory for norms if train.noise_scale says so.
  StepNoise(const StageParts&, GradSync&);

  // A measurement. experts: those that are separate units, which `rest` is then without.
  struct Samples {
    std::optional<NoiseSample> rest{}, experts{};
  };
  void start_step(int64_t step);
  void stop();                                          // no more in this step
  void microbatch_done(const RankShape&, int stage);    // its last backward pass through the stage
  Samples finish(double grad_norm, double loss_scale);  // gradients are summed; adds to scale()
  NoiseScale& scale() { return scale_; }

 private:
  bool experts_apart() const;
  int edp_parts() const;
  SmallBatches small_batches_of(int64_t global, bool experts) const;
  void make_norms();

  GradSync& sync_;
  NoiseScale scale_;
  std::unique_ptr<LocalNorms> norms_;  // null: train.noise_scale = 0
  bool measuring_ = false;             // in this step
  int64_t step_ = 0;
};

}  // namespace trireme
