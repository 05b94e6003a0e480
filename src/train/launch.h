// All ranks of a run in this process.
#pragma once
#include "train/trainer.h"

namespace trireme {

// train() on run.world() rank threads, each with a device of its own, made with these options. Hooks are
// called by rank 0, on the calling thread. The error of one rank ends all, and names it where there are
// several.
TrainSummary train_on_threads(const RunSpec&, const Schedule&, const DeviceOptions&, const TrainOptions&,
                              const TrainHooks&);

}  // namespace trireme
