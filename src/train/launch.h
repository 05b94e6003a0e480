// The ranks of a run: all in this process, or this process one of them.
#pragma once
#include "comm/process_world.h"
#include "comm/watch/watchdog.h"
#include "train/trainer.h"

namespace trireme {

// train() on run.world() rank threads, each with a device of its own, made with these options. Hooks are
// called by rank 0, on the calling thread. The error of one rank ends all, and names it where there are
// several. A rank that keeps the others waiting is named in a warning; after train.timeout seconds the
// process ends, exit code 1, with a line that names it.
TrainSummary train_on_threads(const RunSpec&, const Schedule&, const DeviceOptions&, const TrainOptions&,
                              const TrainHooks&);

// Several rank threads and a watchdog over them; the body of each has its pulse (null where there is one
// rank). Where a rank fails and another does not leave within WatchLimits::leave_s, for it hangs elsewhere
// than in a collective, the process ends with the error's exit code and a line for either.
using WatchedBody = std::function<void(Device&, CommFactory&, Pulse*)>;
void run_watched_threads(const RunSpec&, const DeviceOptions&, const TrainOptions&, const TrainHooks&,
                         const WatchedBody&);

// The body as the rank that this process is, with a watchdog over it. The error of one rank ends all; thrown
// on each is the result of ProcessWorld::end_failed(). The body tells the other ranks of its error
// (CommFactory::fail) before it leaves.
void run_watched_process(const RunSpec&, const DeviceOptions&, const TrainOptions&, const TrainHooks&,
                         ProcessWorld&, const WatchedBody&);

// train() as the rank that this process is. Hooks are called on rank 0. The error of one rank ends all;
// thrown on each is what ProcessWorld::end_failed() gives.
TrainSummary train_on_process(const RunSpec&, const Schedule&, const DeviceOptions&, const TrainOptions&,
                              const TrainHooks&, ProcessWorld&);
// The same with a device that is made already.
TrainSummary train_on_process(const RunSpec&, const Schedule&, Device&, const TrainOptions&,
                              const TrainHooks&, ProcessWorld&);

// What a watchdog of a run does: warnings go to hooks.warn, what ends the run there too, and the process ends
// with exit code 1, for the thread that hangs cannot be ended otherwise. The hooks outlive it.
WatchHooks watch_hooks(const TrainHooks&);
// The limits of a run: its timeout; a warning comes after half of it at the latest.
WatchLimits watch_limits(const RunSpec&, WatchLimits);

}  // namespace trireme
