// The actions of one step of a run, from its layout.
#pragma once
#include "schedule/schedule.h"
#include "spec/run_spec.h"

namespace trireme {

// The ZeRO stage that has an effect: 0 where a shard group has one rank, which has nobody to share with.
int effective_zero(const LayoutSpec&);

// The generator that layout.schedule names, with its steps, and for several replicas with what they say to
// each other.
Schedule schedule_of(const RunSpec&);

}  // namespace trireme
