// What a run file may say and its writer seldom means.
#pragma once
#include <string>
#include <vector>

#include "spec/run_spec.h"

namespace trireme {

// Valid and seldom meant, a sentence each: a model that mixes one architecture's parts with another's, a
// learning rate that is never reached or is 0, state sharded over one rank. The model is finished.
std::vector<std::string> notes_of(const RunSpec&);

}  // namespace trireme
