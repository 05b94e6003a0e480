// Schedules that no generator makes, for a run: read from a file, or searched for the times of its forecast.
#pragma once
#include <vector>

#include "sim/pipeline.h"
#include "spec/cluster_spec.h"
#include "spec/run_spec.h"

namespace trireme {

// Of each pipeline rank, what it takes for a microbatch, in nanoseconds: its real step on meta with the
// cluster's prices, layers' communication beside the stages' own included; send: of a message to a neighbour.
// Where the machine's peaks are not known, as if every device had 1 TFLOP/s: the relation between stages is
// all that a search needs. A function of run and cluster alone, so every rank finds the same.
std::vector<StageTimes> stage_times(const RunSpec&, const ClusterSpec&);

// Sets run.own_schedule where layout.schedule is "file" or "auto" (sim/find_schedule.h: the shortest step
// found in which no rank holds more than layout.in_flight microbatches) and it is not there yet.
void find_own_schedule(RunSpec&, const ClusterSpec&);

}  // namespace trireme
