// How many blocks a rank of a pipeline has, in closed form.
#pragma once
#include "cost/step_time.h"

namespace trireme {

// The cut of a run's blocks into the stages of its pipeline; of experts and dense blocks alike. by_cost: for
// blocks that cost alike; by_share: one chunk a rank.
class PipelineBlocks {
 public:
  explicit PipelineBlocks(const StepCase&);
  // Blocks of rank `rank` of StepCase::pp over all of its chunks.
  double own(int64_t rank) const { return of(rank, false); }
  // Those that microbatches in flight are held by: of a V's rank 0 twice the blocks of its way down, where
  // all but one of them are.
  double held(int64_t rank) const { return of(rank, true); }
  // Interleaved, so many chunks of microbatches being in flight: blocks times microbatches, at most.
  double in_flight(int64_t rank, double chunks) const;
  // One chunk a rank: the last of the ranks with the most blocks.
  int64_t last_fullest() const;

 private:
  double of(int64_t rank, bool held) const;
  bool v_ = false, even_ = false, by_share_ = false, next_group_ = false;
  double head_ = 0;  // by_share: the head in blocks
  int64_t pp_ = 1, chunks_ = 1, layers_ = 0;
  int64_t last_ = 0, each_ = 0, more_ = 0;  // by_cost: the last stage's, the others', how many have one more
};

// Of one rank. Who asks for several keeps the cut.
double rank_layers(const StepCase&, int64_t rank);
double held_layers(const StepCase&, int64_t rank);

}  // namespace trireme
