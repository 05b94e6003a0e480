// Parameters of the fullest rank of a run, and the ranks that divide its state (step_time.h).
#pragma once
#include "cost/step_time.h"

namespace trireme {

struct Stored {
  double dense = 0, experts = 0;  // parameters of the fullest rank
};
Stored stored(const StepCase&);

// Ranks that divide the state among them: of parameters that all of a stage's ranks hold, and of experts.
double sharers(const StepCase&);
double expert_sharers(const StepCase&);

// Seconds of ZeRO's collectives of `layers` that take lists of tensors (StepCase::sliced).
double sliced_time(const StepCase&, double layers);

}  // namespace trireme
