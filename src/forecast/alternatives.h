// Single changes of a run on GPUs that fit, by the search's closed form: what else the run could be.
#pragma once
#include "forecast/forecast.h"

namespace trireme {

// Sets f.alternatives: the first two that fit among the changes in the order of their bounds. Each has the
// step and the bytes that `plan` prints of the changed run. Leaves it empty if the step is not the search's
// (Forecast::closed_form) or does not fit.
void find_alternatives(Forecast& f, const RunSpec&, const ClusterSpec&);

}  // namespace trireme
