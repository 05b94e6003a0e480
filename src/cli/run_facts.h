// Software and machine, as a launch of a run records them.
#pragma once
#include <string>

#include "spec/cluster_spec.h"
#include "spec/run_spec.h"

namespace trireme::cli {

// JSON object for TrainOptions::facts_json. threads: OpenMP threads per rank.
std::string run_facts_json(const RunSpec&, const ClusterSpec&, int threads);

}  // namespace trireme::cli
