// The run of `simulate --model NAME --layout KEYS`, which has no file.
#pragma once
#include "cli/simulate_run.h"
#include "forecast/scaled_run.h"

namespace trireme::cli {

// Returns the run, not resolved. Sets the windows and biases of the model that --software prices.
RunSpec run_of_options(const SimulateRunRequest&, ScaledRun&);
// Prints a note of the sequence length and the batch that --layout does not name.
void tell_unnamed(const RunSpec&, const SimulateRunRequest&);

}  // namespace trireme::cli
