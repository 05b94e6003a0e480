// A run of any size as a World that sim/world.h replays: its own schedule, priced layer by layer in closed
// form (cost/stage_time.h, cost/step_memory.h) with the constants that `score` fits.
#pragma once
#include <string>

#include "cost/step_time.h"
#include "sim/world.h"
#include "spec/run_spec.h"

namespace trireme {

// Whose measured constants price the step: names of data/score_constants.json; "" = what all have in common.
struct PricedBy {
  std::string device, software, site;
};

struct ScaledRun {
  RunSpec run;         // resolved
  int64_t window = 0;  // of some layers' attention (StepCase)
  double window_share = 0;
  bool expert_bias = false;  // StepCase's
  DeviceFigures figures;
  PricedBy by;
  bool own = false;  // what overlaps is trireme's own runtime's (StepCase::own), no share of a software's
};

// The run as a case of step_time(). Errors (request): what the closed form does not know, by name.
StepCase step_case_of(const ScaledRun&);
// Errors (request): a software or a site of which nothing was measured.
FitValues constants_of(const PricedBy&);
// Of trireme's own runs: no collective is exposed by a share.
FitValues own_constants(FitValues);

// Undisturbed.
World world_of(const ScaledRun&);

}  // namespace trireme
