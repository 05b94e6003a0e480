// Optimizer post-validation (Qi et al. 2024, arXiv 2401.10241, section 4): a rank updates its weights as if
// no clipping were needed and every gradient finite, and continues with the next step. The numbers of all
// ranks are gathered meanwhile. Before its first backward pass each rank looks whether the step was right. If
// it was not, all ranks drop the passes that they have begun, take the step back and make it again.
//
// The paper passes partial norms from stage to stage and rolls AdamW back by its inverse. Here every rank
// gathers the same numbers as a step without post-validation has, and the state before the step is kept: so
// results are bit-identical.
#pragma once
#include <functional>
#include <vector>

#include "runtime/settlement.h"
#include "runtime/step_end.h"
#include "schedule/settle.h"

namespace trireme {

// Ends steps in place of a StepEnd. Thread-compatible: the rank's thread.
class PostedStep : StageParts {
 public:
  // Takes memory for the state before a step. always: also after a step that was taken back.
  PostedStep(const StageParts&, StepEnd&, SettlePoint, bool always,
             std::function<void()> weights_from_master);
  ~PostedStep();
  PostedStep(const PostedStep&) = delete;

  const SettlePoint& point() const { return point_; }
  void start_step(bool may_post) { may_post_ = may_post; }
  // At the settle point: from there to its update the step leaves the state alone.
  void keep_state();
  // StepEnd::finish(), or posts the step if its state was kept.
  StepResult finish(const StepInput&);
  // The rest of what step() returned of a posted step.
  void set_result(const StepResult& r) { result_ = r; }

  bool under_way() const { return under_way_; }  // a step is not settled
  // Waits for all ranks. False: the step was wrong. `drop` was called, then it was taken back.
  bool settle(const std::function<void()>& drop);
  // Its argument is called once with the result: in the midst of the next step(), or in settle().
  void on_settled(std::function<void(const StepResult&)> f) { settled_ = std::move(f); }
  // After the step, on all ranks: bytes for all, as many on each; from on_settled() on those of every rank.
  void tell(std::span<const std::byte> mine);
  std::span<const std::byte> told() { return settlement_.told(); }
  int64_t taken_back() const { return taken_back_; }  // steps that were repeated
  int64_t rollback_bytes() const;                     // state before the step, in the optimizer's bucket

 private:
  template <class Each>
  void each_saved(const Each&);
  StepResult post(const StepInput&);
  void read_settlement();
  void take_back();

  StepEnd& end_;
  std::function<void()> weights_from_master_;
  Settlement settlement_;
  Stream keeping_;  // copies state next to the step's passes, which leave it alone
  SettlePoint point_;
  bool always_;
  bool calm_ = true;          // the last step was neither clipped nor skipped
  std::vector<Owned> saved_;  // master copies, then state: own parts, f32, as they were before the step
  std::function<void(const StepResult&)> settled_;
  int64_t taken_back_ = 0;
  bool may_post_ = false, kept_ = false;  // this step; its state before is kept, or its copy in flight

  // ---- the step that is not settled ----
  bool under_way_ = false;
  StepInput input_;  // its losses and routing are of no use any more
  FillBatch fill_;
  StepResult result_;
  LossScaleState scale_;  // before it
};

}  // namespace trireme
