// Where a step is, for traces, the failure detector and tests.
#pragma once
#include <functional>
#include <memory>
#include <string_view>

#include "comm/watch/pulse.h"
#include "program/program.h"
#include "runtime/op_tracer.h"

namespace trireme {

// Looked at between actions. Both may be empty.
struct StepControl {
  // "F", "B", ..., "norm", "update": before each action and each part of Step; a test kills the process here.
  std::function<void(std::string_view phase)> phase;
  // Called with the pass that continues, if two run by turns (Op::by_turns); `phase` was called for both.
  std::function<void(const Action&)> turn;
  // Called before each operation of the program. The operation `norm` begins with the loss.
  std::function<void(const Op&)> op;
  // After a microbatch's last backward action, when more follow: true = leave the step, drop its gradients.
  // All ranks must give the same answer. Not asked in a pipeline, whose ranks are never at the same place.
  std::function<bool()> stop;
};

struct StepWatch {
  std::string_view layer;            // that runs; of layers' own texts
  std::unique_ptr<OpTracer> tracer;  // null: not traced
  Pulse* pulse = nullptr;
  StepControl control;

  void enter(std::string_view phase, int64_t mb = -1) const {
    if (pulse) pulse->action(phase, mb);
    if (control.phase) control.phase(phase);
  }
};

}  // namespace trireme
