// What the trace of a pipeline's run says of its stages: the times and bytes that find_schedule() asks for.
#pragma once
#include <span>
#include <vector>

#include "sim/find_schedule.h"
#include "sim/pipeline.h"
#include "trace/span.h"

namespace trireme {

struct TracedStages {
  std::vector<StageTimes> times;  // by stage, nanoseconds; send: from when both sides had come
  std::vector<HeldLimit> held;    // by stage, bytes of activations that a microbatch takes; most: 0
  int microbatches = 0;           // of a step
};

// Medians over the trace's microbatches and steps; of replicas the slowest and fullest. input has what was
// computed again for it (R). A microbatch takes what its forward action leaves, and after its input gradient
// that without what this gave back. Errors (request): no actions of a run with one stage a rank whose
// backward passes are in two (I and W).
TracedStages traced_stages(std::span<const Span>);

}  // namespace trireme
