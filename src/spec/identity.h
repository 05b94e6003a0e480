// The keys that make a run this run and no other.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "spec/run_spec.h"

namespace trireme {

// Differences between the keys that decide the loss: "train.steps: 100 -> 300". Empty if and only if both
// specs describe one run. Keys that a resume may change (layout, batch.micro, paths, cadences) count only
// through what they decide: moe.unit is compared with the sequences that it spans. For model.from only its
// presence counts. Requires: both specs are resolved.
std::vector<std::string> diff_of_identity(const RunSpec& before, const RunSpec& after);
// The type that precision.grads = "auto" becomes. precision.compute is resolved.
std::string_view automatic_grads(const RunSpec&);

// Differences in how work and sums are divided and in the kernels: layout, microbatches, device. A resume may
// change them, and thereby the last bits.
std::vector<std::string> diff_of_division(const RunSpec& before, const RunSpec& after);

}  // namespace trireme
