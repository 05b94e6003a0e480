// How often to save: the interval that loses the least time to saves and to failures together.
#pragma once
#include <cstdint>

namespace trireme {

// Bytes/s of a device to its host's memory, if nothing states it: PCIe 4 x16, as copies reach it.
inline constexpr double kHostLink = 20e9;

// Seconds of work between two saves (Daly 2006, "A higher order estimate of the optimum checkpoint interval
// for restart dumps", eq. 37), from C = seconds that a save costs and M = mean seconds between failures:
//   sqrt(2 C M) (1 + sqrt(C / (2 M)) / 3 + C / (18 M)) - C for C < 2 M, else M.
//
// Of an asynchronous save C is the stall alone, the time in which training stands still: writing goes on
// beside the next steps, and what a failure in that time costs more, the work since the save before, is the
// same whatever the interval is, so it does not move the optimum.
double daly_interval(double cost_s, double mtbf_s);

// The first-order optimum, sqrt(2 C M) (Young 1974).
double young_interval(double cost_s, double mtbf_s);

// The share of time lost at an interval: C / T for saves, and for failures, which come at random, on average
// half an interval and a restart: Daly's exact expectation M e^(R/M) (e^((T+C)/M) - 1) of the time that T
// seconds of work take.
double checkpoint_waste(double interval_s, double cost_s, double mtbf_s, double restart_s = 0);

// Steps between saves: the interval in whole steps, at least one, and never less than a write takes, for one
// save at a time is under way.
int64_t checkpoint_steps(double interval_s, double write_s, double step_s);

}  // namespace trireme
