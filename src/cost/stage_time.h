// The parts of step_time() by action of a schedule: what one layer of a stage takes on one microbatch, and
// what a rank's parameters take at the step's end. A simulator puts them in order; the terms are those of
// step_time.h, with the same constants, and of a stage with all microbatches they add up to its.
#pragma once
#include "cost/step_time.h"

namespace trireme {

// Seconds of one pass: what the device computes (launches that do not run ahead of it too), and what
// collectives keep it waiting for.
struct PassSeconds {
  double compute = 0, tp = 0, cp = 0, ep = 0;
  double total() const { return compute + tp + cp + ep; }
};
// again: what the backward pass does again (StepCase::recompute).
struct ActionSeconds {
  PassSeconds forward, input, weight, again;
  double total() const { return forward.total() + input.total() + weight.total() + again.total(); }
};
ActionSeconds layer_actions(const StepCase&, const DeviceFigures&, const FitValues&, bool experts);
ActionSeconds layer_actions(const StepCase&, const DeviceFigures&, const FitValues&, bool experts,
                            const LayerCompute&);
ActionSeconds head_actions(const StepCase&, const DeviceFigures&, const FitValues&);

// Parameters that a rank of tp and ep holds of a layer; `dense` of an embedding or a head is table_held().
struct HeldParameters {
  double dense = 0, experts = 0;
};
HeldParameters layer_held(const StepCase&, bool experts);
double table_held(const StepCase&);

// Seconds of the collectives of such parameters among replicas: gradients, of all of them or to their owners,
// and weights back from them; experts' among their own replicas. Of ZeRO 0 the sum of gradients is all. With
// ZeRO 3 those of one microbatch, nothing taken as hidden and none between shard groups. layers: of which
// each reduction begins anew.
struct StateSeconds {
  double reduce = 0, gather = 0, reduce_experts = 0, gather_experts = 0;
};
StateSeconds state_seconds(const StepCase&, const DeviceFigures&, const FitValues&, const HeldParameters&,
                           double layers);
// The optimizer's update of them, offloaded state there and back; and what a step takes beside everything.
double update_seconds(const StepCase&, const DeviceFigures&, const FitValues&, const HeldParameters&);
double offload_seconds(const StepCase&, const DeviceFigures&, const FitValues&, const HeldParameters&);
double step_seconds(const StepCase&, const DeviceFigures&, const FitValues&);

// A message between neighbouring stages.
double message_seconds(const StepCase&, const DeviceFigures&, const FitValues&);
// By which all parts of a step are slower: the site's pace, and what nodes wait for one another.
double slowness(const StepCase&, const DeviceFigures&, const FitValues&);

}  // namespace trireme
