// A step of trireme's own runtime in closed form: step_time()'s prices, put together by what waits for what.
#pragma once
#include "cost/step_time.h"

namespace trireme {

// Of StepCase::own.
StepSeconds own_step_time(const StepCase&, const DeviceFigures&, const FitValues&, const StepParts&);

}  // namespace trireme
