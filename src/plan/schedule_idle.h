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

// Seconds by which a step of equal stages is longer because messages between ranks take `message` seconds,
// each way, beside compute: the schedule's own order, timed with them. shares: seconds of a rank's whole
// share of a microbatch. Exact as above but for lengths between those that are timed (a line between them,
// each twice the one before), and interleaved up to three times as many microbatches as stages.
double message_waits(std::string_view schedule, int64_t chunks, int64_t stages, int64_t microbatches,
                     const PassShares& shares, double message);

}  // namespace trireme
