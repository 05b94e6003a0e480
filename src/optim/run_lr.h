// The learning rates of a run.
#pragma once
#include "optim/lr_schedule.h"
#include "spec/run_spec.h"

namespace trireme {

LrSchedule lr_schedule_of(const RunSpec&);

}  // namespace trireme
