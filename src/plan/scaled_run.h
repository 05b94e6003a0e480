// A run of any size as a World that sim/world.h replays: its own schedule, priced layer by layer in closed
// form (cost/stage_time.h, cost/step_memory.h) with the constants that `score` fits.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "cost/step_time.h"
#include "sim/world.h"
#include "spec/run_spec.h"

namespace trireme {

struct ScoreConstants;  // plan/score_fit.h

// Whose measured constants price the step: names of data/score_constants.json; "" = what all have in common.
struct PricedBy {
  std::string device, software, site;
  // Constants of one's own (`trireme score --fit` and `--calibrate` write them) in the place of the shipped.
  std::shared_ptr<const ScoreConstants> own;
  std::string file;  // they are from; "" = the shipped
};
// By the constants of `text`, the content of `file`: where no site is named, by the one that the file has and
// the shipped have not. Errors (request): there are several; or nothing of it is the file's own.
void price_by_own(PricedBy&, std::string_view text, const std::string& file);
// "constants of mine.json: software nemo, site mine (the whole step x 1.07 of other sites')"; empty of the
// shipped ones with nothing named.
std::string text_of(const PricedBy&);
// What a step takes at the site relative to its parts (Fit::pace, Fit::jitter): for a step that is priced op
// by op, whose prices know nothing of a site. 1 where none is named.
double site_slowness(const PricedBy&, int64_t devices);

struct ScaledRun {
  RunSpec run;         // resolved
  int64_t window = 0;  // of some layers' attention (StepCase)
  double window_share = 0;
  bool expert_bias = false;  // StepCase's
  DeviceFigures figures;
  PricedBy by;
  bool own = false;    // what overlaps is trireme's own runtime's (StepCase::own), no share of a software's
  double offload = 0;  // StepCase's, of a run that offloads state
  bool offload_each_way = false;
};

// The run as a case of step_time(). Errors (request): what the closed form does not know, by name.
StepCase step_case_of(const ScaledRun&);
// Keys of [layout] that move a step and that the search does not vary: sequence, cut, cp_overlap,
// cp_placement, ep_buffer, ep_load, prefetch, reshard_after_forward, reshard_last. The case has its degrees
// and seq already.
void set_layout_keys(StepCase&, const LayoutSpec&);
// Errors (request): a software or a site of which nothing was measured.
FitValues constants_of(const PricedBy&);
// Of trireme's own runs: no collective is exposed by a share.
FitValues own_constants(FitValues);
// The same with every kernel at the device's peak, no launches and no slow nodes: a step takes no less.
FitValues constants_at_the_roof(FitValues);
// Bytes that drivers and libraries (NCCL) hold on a run's GPU: a mean of published runs, which a search
// counts too. No bucket has them. 0 on CPUs.
double beside_bytes(const RunSpec&);

// Undisturbed.
World world_of(const ScaledRun&);

}  // namespace trireme
