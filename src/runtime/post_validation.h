// A step that was made before anybody knew whether it was right (docs/pipeline_parallel.md).
#pragma once
#include "runtime/settlement.h"
#include "runtime/stage_runner.h"
#include "schedule/settle.h"

namespace trireme {

struct StageRunner::PostValidation {
  PostValidation(CommFactory& factory, Device& d, SettlePoint p, bool always)
      : settlement(factory, d), device(d), keeping(d.stream("keep")), point(std::move(p)), always(always) {}
  // What is copied is the runner's memory.
  ~PostValidation() {
    try {
      device.sync(keeping);
    } catch (const std::exception&) {
      // What ended the run is told by whoever caught it.
    }
  }

  Settlement settlement;
  Device& device;
  Stream keeping;  // copies state beside the step's passes, which leave it alone
  SettlePoint point;
  bool always;               // false: not after a step that was taken back
  bool calm = true;          // the last step was neither clipped nor skipped
  std::vector<Owned> saved;  // master copies, then state: own parts, f32, as they were before the step
  std::function<void(const StepResult&)> settled;
  int64_t taken_back = 0;
  bool may_post = false, kept = false;  // this step; its state before is kept, or on its way

  // ---- of the step that is not settled ----
  bool under_way = false;
  StepResult result;
  int64_t step = 0, targets = 0;
  LossScaleState scale;  // before it
  const Program* program = nullptr;
  FillBatch fill;
};

}  // namespace trireme
