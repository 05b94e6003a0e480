// What a schedule idles beside 1F1B, of equal stages: its own order of actions, timed.
#pragma once
#include <cstdint>
#include <string_view>

namespace trireme {

// Of a stage and microbatch: relative to one another.
struct PassShares {
  double forward = 1, input = 1, weight = 1;
};

// Idle time of the step, its length less a rank's own work, relative to 1F1B's (p - 1)(F + I + W). Exact up
// to kExactStages stages and kExactTurns times as many microbatches, to passes in 1/24 of their sum; more
// microbatches go on as the last ones did, and more stages as fewer with as many microbatches each.
inline constexpr int64_t kExactStages = 16, kExactTurns = 8;
double idle_of_1f1b(std::string_view schedule, int64_t stages, int64_t microbatches, const PassShares&);

}  // namespace trireme
