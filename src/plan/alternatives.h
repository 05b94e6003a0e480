// Single changes of a run on GPUs that fit, by the search's closed form: what else the run could be.
#pragma once
#include "plan/forecast.h"

namespace trireme {

// Sets f.alternatives: of the changes with the lowest bounds the first two that fit, with the steps and bytes
// that `plan` prints of them. Leaves it empty if the step is not the search's
// (Forecast::closed_form) or does not fit.
void find_alternatives(Forecast& f, const RunSpec&, const ClusterSpec&);

}  // namespace trireme
