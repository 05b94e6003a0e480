// What a run file may say and its writer seldom means.
#pragma once
#include <string>
#include <vector>

#include "spec/run_spec.h"

namespace trireme {

// Returns a sentence for each setting that is valid and seldom meant, or that loses accuracy (with key and
// cost). Examples: parts of another architecture, a learning rate that is never reached, gradients summed in
// bf16. Requires: the model is finished.
std::vector<std::string> notes_of(const RunSpec&);

}  // namespace trireme
