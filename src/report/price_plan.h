// A run planned with other keys.
#pragma once
#include <optional>
#include <span>
#include <string>

#include "report/report.h"
#include "spec/cluster_spec.h"

namespace trireme {

// The run of a plan.toml with `sets` ("batch.micro=4") applied; none where that is not a run that can train.
std::optional<RunSpec> changed_plan(const fs::path& plan, std::span<const std::string> sets);
// Its forecast on the cluster; threads: OpenMP threads per rank. None if it cannot be planned.
std::optional<PricedRun> price_plan(const RunSpec&, const ClusterSpec&, int threads);

}  // namespace trireme
