// What a forecast step takes beside what its parts foretell: the pace of a site, and stragglers.
#pragma once
#include "forecast/forecast.h"
#include "forecast/scaled_run.h"
#include "sim/world.h"

namespace trireme {

// The step, and all that follows from it, takes `s.times` as long; the roof, a bound, stays.
void slow_down(Forecast&, Slowed s);

// Stragglers of up to kMostBookedRanks ranks: the step booked rank by rank and replayed with and without
// them, as `simulate` does it; of more in closed form, for which `device` is asked. Errors (request): ranks
// and nodes that there are not.
Slowed by_stragglers(const RunSpec&, const Schedule&, const ClusterSpec&, int threads, const Forecast&,
                     const Disturbance&, const DeviceFigures& device);

}  // namespace trireme
