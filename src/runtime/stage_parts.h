// References that all parts of a StageRunner have; they inherit it. All of them outlive the parts.
#pragma once
#include "runtime/sharing.h"
#include "runtime/stage_memory.h"
#include "runtime/step_watch.h"

namespace trireme {

struct StageParts {
  const RunSpec& run_;
  bool trains_;  // else inference
  Device& device_;
  CommSet* comms_;  // null: this is the only rank
  const Sharing& sharing_;
  StageMemory& memory_;
  StepWatch& watch_;
  Stream compute_;
};

}  // namespace trireme
