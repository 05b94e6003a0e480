// Do replicas still hold the same training state?
#pragma once
#include "runtime/stage_runner.h"

namespace trireme {

// Hashes weights and optimizer state where several ranks hold the same, and compares in one collective of 8
// bytes a rank; on all ranks. A difference is looked for tensor by tensor in a second round, and ends the run
// with an Error that names rank, tensor and step. What no two ranks hold is not looked at.
void compare_replicas(const StageRunner&, int64_t step);

}  // namespace trireme
