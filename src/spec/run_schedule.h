// The actions of one step of a run, from its layout.
#pragma once
#include "mesh/context.h"
#include "schedule/schedule.h"
#include "spec/run_spec.h"

namespace trireme {

// Ranks that have the same weights and other tokens: those of dp and cp.
int64_t replicas_of(const LayoutSpec&);
// Which tokens context ranks hold: layout.cp_placement, of Ulysses contiguous.
ContextPlacement placement_of(const LayoutSpec&);

// The ZeRO stage that has an effect: 0 where a shard group has one rank, which has nobody to share with.
int effective_zero(const LayoutSpec&);

// The generator that layout.schedule names, with its steps, and for several replicas with what they say to
// each other.
Schedule schedule_of(const RunSpec&);

}  // namespace trireme
