// Size, save time and cadence of a run's checkpoints, in closed form.
#pragma once
#include <cstdint>
#include <optional>

#include "spec/cluster_spec.h"
#include "spec/run_spec.h"

namespace trireme {

// Bytes of one parameter that AdamW trains: its f32 master copy and two moments.
int64_t checkpoint_bytes_per_parameter(const PrecisionSpec&);
// Returns the bytes of one checkpoint that `train` writes: f32 master copies, and moments in
// precision.moments. With adapters, those of the adapters' parameters. trained: parameters that are trained;
// 0 = all of the model's.
int64_t checkpoint_bytes(const RunSpec&, int64_t trained = 0);

struct CheckpointCase {
  double bytes = 0;            // one checkpoint, all ranks together
  double devices = 1;          // that share it evenly
  double host_bandwidth = 0;   // bytes/s of a device to the host's memory; 0 = 20e9 (PCIe 4 x16)
  double write_bandwidth = 0;  // bytes/s of all machines to storage; 0 = not known: nothing is written
  double storage_bytes = 0;    // capacity; 0 = not known
  double step_s = 0;           // a training step
  double mtbf_s = 0;           // mean time between failures of the whole cluster
  double restart_s = 0;        // from a failure to the first step after it
  CountOrAuto stated = {.automatic = true};  // the run's train.checkpoint_every
};
struct CheckpointPlan {
  double bytes = 0;
  double stall_s = 0;     // training waits for the copy into the host's memory
  double write_s = 0;     // time of the copy to storage, concurrent with the next steps
  double young_s = 0;     // between saves, to first order (Young 1974)
  double interval_s = 0;  // between saves: Daly's of the stall, at least write_s
  int64_t steps = 1;      // the same in whole steps
  double lost = 0;        // share of time: stalls, and work that failures undo
  double storage = 0;     // bytes of the storage; 0 = not known
  double kept = 0;        // whole checkpoints that it has room for
  // train.checkpoint_every, if it is a number of steps other than `steps`; 0 = only at the end.
  std::optional<int64_t> stated_steps;
  double stated_lost = 0;  // `lost` with a save every stated_steps; 0 = not known
};
// A copy in the host's memory is lost with its machine. So a failure goes back to the last checkpoint that is
// written: on average half an interval and a write before it.
CheckpointPlan checkpoint_plan(const CheckpointCase&);
// The case of a cluster's figures. Without storage and disk, write_bandwidth is 0.
CheckpointCase checkpoint_case(const ClusterSpec&, double bytes, int64_t devices, double step_s);

}  // namespace trireme
