// The end of a training step: loss, gradient norm, clipping, loss scale, noise scale, update.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/fp8.h"
#include "model/routing.h"
#include "optim/grad_norm.h"
#include "optim/grad_sync.h"
#include "optim/loss_scale.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "optim/spikes.h"
#include "program/program.h"
#include "runtime/microbatch.h"
#include "runtime/step_noise.h"

namespace trireme {

struct StepResult {
  double loss = 0;                  // sum of token losses of the global batch / number of its targets
  double aux_loss = 0, z_loss = 0;  // losses of routers (docs/moe.md): sums over layers
  double grad_norm = 0;             // before clipping; NaN: the step was skipped
  double lr = 0;
  int64_t tokens = 0;  // targets of the step
  double seconds = 0;
  // Where they went: waiting for data, F, B (or I and W), the gradient norm, the update.
  double data_s = 0, forward_s = 0, backward_s = 0, norm_s = 0, update_s = 0;
  double comm_s = 0;      // of these, spent waiting for other ranks and for the wire
  CommCounts comm{};      // collectives of the step, control messages apart
  bool stopped = false;   // StepControl::stop said so; the weights are those before the step
  double loss_scale = 1;  // in this step; 1: the precision needs none
  // Measured in this step. noise_experts: experts that are separate units, which noise is then without.
  std::optional<NoiseSample> noise{}, noise_experts{};
  // Gradients overflowed at that scale, or a spike: weights and moments are those before the step.
  bool skipped = false;
  std::optional<SpikeVerdict> spike{};  // why the step was skipped (train.spikes)
  // Not settled when step() returns (optimizer.post_validation): loss, norm and what follows from them are
  // known to on_settled().
  bool posted = false;
};

// Results of the passes of a step.
struct StepInput {
  int64_t step = 0, targets = 0;     // targets: target tokens of the global batch
  const Program* program = nullptr;  // its operations after the actions
  std::span<const double> losses;    // this rank's, by sequence; then the targets seen
  const Routing* routing = nullptr;
  Fp8Layers* fp8 = nullptr;  // null: none
  const FillBatch* fill = nullptr;
};

// Independent of schedules. Thread-compatible: the rank's thread.
class StepEnd : StageParts {
 public:
  // Makes the optimizer, and takes memory for weights, gradients and state, and for their norms.
  StepEnd(const StageParts&, GradSync&);
  // Repeats the passes of a step (data and randomness are pure functions), to find a value that is not
  // finite.
  void set_repeat(std::function<void(const StepInput&)> repeat) { repeat_ = std::move(repeat); }

  void start_step(int64_t step);
  // After all passes. On all ranks, which meet and know how the step was before weights move. Throws Error
  // naming step, layer and op if a value is not finite; the weights are then still those before the step.
  StepResult finish(const StepInput&);
  double waited_s() const;  // seconds of this step in which compute waited for other ranks

  LossScale& loss_scale() { return loss_scale_; }
  SpikeDetector& spikes() { return spikes_; }
  StepNoise& noise() { return noise_; }
  // The last step whose loss is known: sums of token losses by sequence, in order of the global batch; and
  // routing by block, over all ranks. Empty: a model without experts, or meta.
  std::span<const double> sequence_losses() const { return global_loss_; }
  const std::vector<LayerRouting>& routing() const { return routed_; }

  // ---- parts of finish(), for a step whose result is known later (posted_step.h) ----
  StepResult begun(const StepInput&) const;
  // Completes the sums of gradients; then `make`.
  void with_sums(const StepInput&, StepResult&, const std::function<void()>& make);
  std::span<const double> squares();  // sums of squares of this rank's gradients
  // Numbers of this rank, as many on each; and what follows from all ranks' numbers, in rank order.
  std::vector<double> numbers(const StepInput&);
  void read_numbers(const StepInput&, StepResult&, std::span<const std::span<const double>> of_ranks);
  double clip_scale(double norm) const;  // NaN: the norm is not finite
  void update(const StepInput&, StepResult&, double scale);
  // Loss and norm are known: updates weights, or skips the step, or throws.
  void conclude(const StepInput&, StepResult&);

 private:
  void start_gradients();
  void sum_gradients(const StepInput&);
  double global_loss(const StepInput&, StepResult&);
  double loss_of(const StepInput&, std::span<const double> all);
  void add_shared(StepResult&);
  void count_routing(const StepInput&, StepResult&);
  void add_routing(const StepInput&, StepResult&) const;
  void update_unit(size_t unit, const UpdateInput&);
  void move_router_biases();
  [[noreturn]] void find_nonfinite(const StepInput&, const StepResult&);

  GradSync& sync_;
  ParamSet& params_;  // memory_'s
  FlatState& flat_;
  std::function<void(const StepInput&)> repeat_;
  LrSchedule lr_;
  LossScale loss_scale_;
  SpikeDetector spikes_;
  std::unique_ptr<Optimizer> optimizer_;
  double optimizer_waited_s_ = 0;  // before this step
  GradNorm grad_norm_;
  StepNoise noise_;
  std::vector<LayerRouting> routed_;
  std::vector<double> global_loss_, gathered_loss_;  // by global index; by rank
};

}  // namespace trireme
