// The automatic schedule: F, I and W of each rank in the order that takes least virtual time, given what they
// take, what a message takes, and how many microbatches a rank may hold (Qi et al. 2024, section 3).
#pragma once
#include <cstdint>
#include <span>

#include "schedule/schedule.h"
#include "sim/pipeline.h"

namespace trireme {

enum class Aim : uint8_t {
  step,  // the makespan: what a step takes whose update waits for all ranks
  span,  // the longest time from a rank's first action to its last, which papers give
};

// What a rank may hold, in any unit, and what a microbatch takes of it: between its forward and its input
// gradient (M_B in the paper's words), and from then to its weight gradient (M_W, no more than M_B).
struct HeldLimit {
  int64_t most, before_input = 1, before_weight = 1;
};

// times: of each stage, one a rank; limits: of each rank, room for a microbatch at least. Microbatches in
// ascending order in every kind, so weight gradients too: results are bit-identical to those of other
// schedules.
//
// Candidates are sequences of the 1F1B, ZB-H and ZB-2p kinds within the limit, and greedy ones, which take at
// every moment what is ready, by rules that differ in when they prefer a forward, an input gradient or a
// weight gradient to waiting; then moves of single actions, kept where they do not lengthen. Equal arguments
// give equal schedules. Never longer than 1F1B or ZB-H1, nor by Aim::span than ZB-H2, where those keep the
// limit.
Schedule find_schedule(std::span<const StageTimes> times, int microbatches, std::span<const HeldLimit> limits,
                       Aim);

}  // namespace trireme
