// The step of a run file as `plan --search` prices it, so that both give one layout one step time.
#pragma once
#include <optional>

#include "plan/cluster_device.h"
#include "plan/search.h"

namespace trireme {

// Sets the request's types: of products, and of gradients in memory and on the wire. precision as a run file
// has it, or resolved.
void set_types(SearchRequest&, const PrecisionSpec&);
// Sets where optimizer state may wait. Requires: the device has the bandwidth that the run asks for.
// run: null = none is given.
void set_offload(SearchRequest&, const RunSpec* run, const SubjectDevice&);

// The request of `plan --search` for this run's model, batch and devices, with the constants of all measured
// sites. run and device as in set_types() and set_offload().
SearchRequest search_request_of(const RunSpec&, const SubjectDevice&);

// The layout of a resolved run in the search's terms. Nothing: the search has no such layout, or its closed
// form does not know the run.
std::optional<SearchLayout> layout_of(const RunSpec&);

struct SearchedStep {
  double step_s = 0;
  double roof_s = 0;  // by the same closed form, with constants_at_the_roof()
};
// The step that the search forecasts for this resolved run. Nothing: it does not know the run, or the cluster
// lacks a figure.
std::optional<SearchedStep> searched_step(const RunSpec&, const ClusterSpec&);

}  // namespace trireme
