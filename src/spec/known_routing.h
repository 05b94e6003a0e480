// What a run's routers chose, as a recording has it, given to the forecasts of that run.
#pragma once
#include "spec/run_spec.h"
#include "trace/recorded_rows.h"

namespace trireme {

RoutingShape routing_shape_of(const RunSpec&);
// Sets the run's known_routing to a recorded step, 0 = the last. Errors (request) name `from`: a recording of
// another layout, model or batch, a step that it does not have, a run whose experts no ranks divide.
void set_known_routing(RunSpec&, const RecordedRows&, int64_t step, std::string_view from);
// Rows for the fullest rank of experts over the mean, the mean of blocks and microbatches; 1 where none are
// known.
double known_load(const RunSpec&);

}  // namespace trireme
