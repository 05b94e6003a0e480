// Energy, checkpoints and mixed devices of a run in words: lines that `plan` and `search` share.
#pragma once
#include <string>

#include "base/json.h"
#include "cost/checkpoint_plan.h"
#include "spec/cluster_spec.h"
#include "spec/run_spec.h"

namespace trireme {

// Returns W of the run's devices and machines, with the site's share; 0 = the cluster states none.
double run_watts(const ClusterSpec&, int64_t devices);
// "46.1 kW", and which part of it the cluster does not state: "44.8 kW of the devices alone".
std::string power_text(const ClusterSpec&, int64_t devices);
// "46.1 kW; 12.8 Wh per step, 356 kWh per billion tokens". Requires: run_watts() > 0, step_s > 0.
std::string energy_text(const ClusterSpec&, int64_t devices, double step_s, double step_tokens);
// "1.18 TB, training waits 115 ms, written in 59.0 s; save every 12 min 31 s (410 steps), 0.9 % of time
// lost", and the run's own cadence where it differs: "train.checkpoint_every = 200 loses 1.1 %".
std::string checkpoint_text(const CheckpointPlan&);
nlohmann::ordered_json json_of(const CheckpointPlan&);
// Describes the slowest member of a cluster of several kinds; "" for one kind.
std::string kinds_text(const ClusterSpec&);
// Names the kinds that a layout's pipeline ranks have; if each has all kinds, as above.
std::string kinds_text(const ClusterSpec&, const LayoutSpec&);

}  // namespace trireme
