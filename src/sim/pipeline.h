// A schedule of any number of stages as tapes, with times of its actions: the virtual time of the papers.
#pragma once
#include <vector>

#include "schedule/schedule.h"
#include "sim/replay.h"

namespace trireme {

// Times of a stage's actions on one microbatch; B takes those of I and W, and its message leaves behind both.
// send: until a message is there. Streams of messages: one a peer and direction, which carries one at a time.
// hidden: what a forward and a backward that are issued together take less than one behind the other (F + B -
// F&B, in DeepSeek-V3's words); of two stages the smaller one's.
struct StageTimes {
  int64_t forward = 1, input = 1, weight = 1, recompute = 0, step = 0, send = 0, hidden = 0;
};

// Owns what RankTapes point to; ranks are the schedule's.
struct PipelineTapes {
  std::vector<Tape> tapes;
  std::vector<std::vector<Price>> prices;
  std::vector<RankTape> ranks() const;
};

// times: one for every stage, or one of each. Transfers that the schedule does not have (generators emit
// compute alone) leave behind their F, B or I and are waited for before the action that needs them; of
// actions that are issued together all leave behind the last and are waited for before the first. Unshard,
// Reshard and ReduceGrad take no time here: they belong to tapes recorded from a run. Errors (request): a
// stage that two ranks have, a number of times that is neither 1 nor the stages'.
PipelineTapes tapes_of(const Schedule&, std::span<const StageTimes> times);

// The largest, over ranks, of the idle time between a rank's first and last compute divided by that span
// (the papers' bubble); and of the global makespan.
struct Bubble {
  double own = 0, of_makespan = 0;
  int64_t idle = 0, span = 0;  // the largest over ranks, each by itself
};
Bubble bubble(std::span<const RankTape>, const Replay&);

// What a rank holds at its fullest, in passes of one microbatch through one of its stages: those whose
// forward is done and whose input gradient is not (M_B each, in the words of Qi et al. 2024), and those that
// wait for their weight gradient (M_W). Counted as if M_W = M_B, the most it can be; of equal peaks the
// first. It is a matter of order alone: memory never depends on time.
struct HeldPeak {
  int before_input = 0, before_weight = 0;
  int all() const { return before_input + before_weight; }
};
std::vector<HeldPeak> held_peaks(const Schedule&);  // by rank

}  // namespace trireme
