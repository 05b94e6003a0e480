// A run of any size as a World that sim/world.h replays: its own schedule, priced layer by layer in closed
// form (cost/stage_time.h, cost/step_memory.h) with the constants that `score` fits.
#pragma once
#include "catalog/device_kinds.h"
#include "catalog/priced_by.h"
#include "cost/step_time.h"
#include "sim/world.h"
#include "spec/run_spec.h"

namespace trireme {

struct ScaledRun {
  RunSpec run;         // resolved
  int64_t window = 0;  // of some layers' attention (StepCase)
  double window_share = 0;
  bool expert_bias = false;  // StepCase's
  DeviceFigures figures;
  PricedBy by;
  SoftwareProfile software = kElsewhere;
  AttentionKind attention = AttentionKind::flash;
  double offload = 0;  // StepCase's, of a run that offloads state
  bool offload_each_way = false;
  std::shared_ptr<const DeviceKinds> kinds;  // the pipeline ranks' kinds; null: all ranks have `figures`
};

// The run as a case of step_time(). Errors (request): what the closed form does not know, by name.
StepCase step_case_of(const ScaledRun&);
// The case on devices of that kind: where its optimizer state waits.
StepCase on_kind(StepCase, const DeviceKinds::Kind&);
// Keys of [layout] that move a step and that the search does not vary: sequence, cut, cp_overlap,
// cp_placement, ep_buffer, ep_load, prefetch, reshard_after_forward, reshard_last. The case has its degrees
// and seq already.
void set_layout_keys(StepCase&, const LayoutSpec&);
// Bytes that drivers and libraries (NCCL) hold on a run's GPU: a mean of published runs, which a search
// counts too. No bucket has them. 0 on CPUs.
double beside_bytes(const RunSpec&);

// Undisturbed.
World world_of(const ScaledRun&);

}  // namespace trireme
