// The tape of a rank's step, composed of tapes of its operations. The pieces that an operation issues are
// recorded once for each kind of operation, in a step of a few of the microbatches.
#pragma once
#include <functional>
#include <optional>

#include "runtime/recording.h"

namespace trireme {

// The tape that record_training() makes of one step, without running all of its microbatches. Nothing: the
// kinds of operations are too many, or what one waits for does not follow from its kind.
// look: called with the runner after the step of a few microbatches.
std::optional<Tape> composed_training(const RunSpec&, const Schedule&, int threads, int rank,
                                      const ClusterSpec&, const std::function<void(StageRunner&)>& look = {});

}  // namespace trireme
