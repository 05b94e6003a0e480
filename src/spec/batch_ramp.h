// A global batch that grows in stages (batch.ramp): the one place that says how many sequences a step has.
#pragma once
#include <string>
#include <vector>

#include "spec/run_spec.h"

namespace trireme {

inline constexpr size_t kMostRampStages = 64;

// The stage of a step (from 1): an index into batch.ramp, whose size stands for batch.global.
size_t stage_at(const BatchSpec&, int64_t step);
int64_t global_at(const BatchSpec&, int64_t step);  // sequences of a step
// Sequences of steps 1 to `step`. bad_request beyond 2^63.
int64_t samples_until(const BatchSpec&, int64_t step);
// Returns the fewest steps that have at least `sequences` sequences together.
double steps_for(const BatchSpec&, double sequences);
bool same_batches(const BatchSpec&, const BatchSpec&, int64_t steps);  // in steps 1 to `steps`
int64_t smallest_batch(const BatchSpec&);
int64_t divisor_of_batches(const BatchSpec&);  // the greatest that all stages have

// Steps of one batch, from first to last.
struct BatchStage {
  int64_t first = 1, last = 0, global = 0;
  int64_t steps() const { return last - first + 1; }
  bool operator==(const BatchStage&) const = default;
};
// The stages that train.steps reaches, in order; without a ramp one.
std::vector<BatchStage> batch_stages(const RunSpec&);
// The same run with one batch for all steps.
RunSpec with_batch(RunSpec, int64_t global);
// "8 sequences to step 100, 16 to step 200, then 32".
std::string ramp_text(const BatchSpec&);
// "32 sequences of 256 tokens, 8 a microbatch", and of a ramp its stages.
std::string batch_text(const RunSpec&);

// Contradictions of batch.ramp with other keys.
void check_ramp(const RunSpec&, std::vector<Problem>& out);

}  // namespace trireme
