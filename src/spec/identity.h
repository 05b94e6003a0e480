// Which keys make a run this run and no other.
#pragma once
#include <string>
#include <vector>

#include "spec/run_spec.h"

namespace trireme {

// diff() of those keys alone that hash() covers: "train.steps: 100 -> 300". What may change at a resume
// (layout, batch.micro, places, cadences) is not among them. Of model.from: whether it is given.
std::vector<std::string> diff_of_identity(const RunSpec& before, const RunSpec& after);
// diff() of how work and sums are divided and which kernels make them: layout, microbatches, device. A resume
// may change them, and last bits with them.
std::vector<std::string> diff_of_division(const RunSpec& before, const RunSpec& after);

}  // namespace trireme
