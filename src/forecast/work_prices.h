// Prices of a step's layers in closed form (cost/stage_time.h), in the units of a World: nanoseconds.
#pragma once
#include "cost/stage_time.h"
#include "sim/world.h"
#include "spec/run_spec.h"

namespace trireme {

// WorldWork::kinds.
enum WorkLayer : int { kDenseLayer, kExpertLayer, kEmbeddingLayer, kHeadLayer, kWorkLayers };

class WorkPrices {
 public:
  // All outlive it.
  WorkPrices(const StepCase&, const DeviceFigures&, const FitValues&);
  // Sets the order of the runtime. keys: for those that StepCase lacks.
  void set_policy(WorldWork&, const LayoutSpec& keys) const;
  // A block on one microbatch.
  LayerWork passes(bool experts) const;
  LayerWork passes(bool experts, const LayerCompute&) const;
  // The head on one microbatch; the embedding is looked up in no time.
  LayerWork head_passes() const;
  // Collectives of these parameters among replicas, their update and bytes of state. layers: StateSeconds'.
  void set_states(LayerWork&, const HeldParameters&, double layers) const;
  // The embedding's or the head's passes and states; a tied table on one stage is there once.
  LayerWork table(bool embedding) const;
  int64_t message() const;
  // The update of a rank with these parameters, without the updates of its layers.
  int64_t update(const HeldParameters&) const;

 private:
  int64_t nanoseconds(double seconds) const;
  void set_passes(LayerWork&, const ActionSeconds&) const;
  const StepCase& c_;
  const DeviceFigures& d_;
  const FitValues& f_;
  double slower_;
};

}  // namespace trireme
