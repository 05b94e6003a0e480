// What a forecast step takes beside what its parts foretell: the pace of a site, and stragglers.
#pragma once
#include "forecast/forecast.h"
#include "forecast/scaled_run.h"
#include "sim/world.h"

namespace trireme {

// The step, and all that follows from it, takes `s.times` as long; the roof, a bound, stays.
void slow_down(Forecast&, Slowed s);

// Replays the step with and without stragglers. The prices are the search's if it knows the run, as in
// `simulate`. If not, up to kMostBookedRanks ranks are priced op by op, and more in closed form with the
// figures of `device`. Throws bad_request for ranks and nodes that do not exist.
Slowed by_stragglers(const RunSpec&, const Schedule&, const ClusterSpec&, int threads, const Forecast&,
                     const Disturbance&, const DeviceFigures& device);

}  // namespace trireme
