// What computing activations again costs, before a run.
#pragma once
#include "spec/run_spec.h"

namespace trireme {

// Mean FLOPs of a token over all stages, beside the model's (cost/flops.h). The spec is resolved.
double recompute_flops_per_token(const RunSpec&);
// The model's own, forward and backward (cost/flops.h).
double step_flops_per_token(const RunSpec&);

}  // namespace trireme
