// The step of a run file as `search` prices it, so that both give one layout one step time.
#pragma once
#include <optional>

#include "catalog/cluster_device.h"
#include "catalog/constants.h"
#include "forecast/layout_case.h"
#include "forecast/scaled_run.h"
#include "sim/steady_step.h"

namespace trireme {

// Sets the request's types: of products, and of gradients in memory and on the wire. precision as a run file
// has it, or resolved.
void set_types(LayoutCase&, const PrecisionSpec&);
// Sets where optimizer state may wait. Requires: the device has the bandwidth that the run asks for.
// run: null = none is given.
void set_offload(LayoutCase&, const RunSpec* run, const SubjectDevice&);

// The request of `search` for this run's model, batch and devices, with the constants of all measured
// sites, or those of `by`. run and device as in set_types() and set_offload().
LayoutCase layout_case_of(const RunSpec&, const SubjectDevice&, PricedBy by = {});

// The layout of a resolved run in the search's terms. Nothing: the search has no such layout, or its closed
// form does not know the run.
std::optional<SearchLayout> layout_of(const RunSpec&);

// Measured over forecast seconds of 80 % of the published rows. If the software is known: of halves that the
// fit has not seen; else with each publication left out of the fit. A test compares both with it.
MeasuredRatios unseen_ratios(bool experts, bool known_software);
void set_interval(LayoutCase&, bool known_software);

// Replays a step of this run, in the request's figures and prices, event by event. Throws bad_request if the
// run cannot be replayed.
StepTotals replayed_step(const LayoutCase&, const PricedBy&, const RunSpec&);

struct SearchedStep {
  double step_s = 0;    // replayed, or closed_s if it cannot be replayed
  double closed_s = 0;  // by the search's closed form
  double roof_s = 0;    // by the same closed form, with constants_at_the_roof()
  StepInterval interval;
  std::vector<std::pair<std::string, double>> tolls;  // shares of closed_s, largest first
};
// The inputs of replayed_step() for this resolved run. Nothing: as searched_step().
std::optional<ScaledRun> searched_run(const RunSpec&, const ClusterSpec&, const PricedBy& by = {});
// The step that the search forecasts for this resolved run, by the constants of `by` (its device is the
// cluster's). Nothing: it does not know the run, or the cluster lacks a figure.
std::optional<SearchedStep> searched_step(const RunSpec&, const ClusterSpec&, const PricedBy& by = {});

// The step that the search forecasts for the run without the settings that the search does not know.
struct NearestStep {
  SearchedStep step;
  std::vector<std::string> without;  // "optimizer.name"; empty: the search knows the whole run
  RunSpec run;                       // without these
};
// Nothing: as searched_step(), of that run.
std::optional<NearestStep> nearest_step(const RunSpec&, const ClusterSpec&, const PricedBy& by = {});
// text_of(by), and what the constants change of the step of that price: "; this step is x 1.190 of the
// shipped constants'".
std::string prices_text(const RunSpec&, const ClusterSpec&, const PricedBy& by, double step_s);
// The setting of the run, or the figure of the cluster, for want of which there is no nearest step; "" =
// none.
std::string why_no_nearest_step(const RunSpec&, const ClusterSpec&);

}  // namespace trireme
