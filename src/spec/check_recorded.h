// Steps that a run is to record: a part of problems_of().
#pragma once
#include "spec/run_spec.h"

namespace trireme {

void check_recorded_steps(const RunSpec&, std::vector<Problem>& out);

}  // namespace trireme
