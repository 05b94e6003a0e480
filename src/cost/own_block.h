// Bytes of one microbatch that trireme's own layers keep and take, in closed form: what model/block,
// attention, mlp, moe and head take and give back in the order in which they do (docs/search.md, "Memory").
#pragma once
#include "cost/step_time.h"

namespace trireme {

// Of a block. Its input is its own, and so is the gradient that comes in.
struct OwnBlock {
  double kept = 0;     // behind the forward pass
  double input = 0;    // at most, while it is computed again and its input gradient is made
  double waiting = 0;  // behind that: until its weight gradient, what came in included
  double weight = 0;   // at most, while its weight gradient is made
  double between = 0;  // its input: what goes from block to block
};
OwnBlock own_block(const StepCase&, bool experts);

// Of the head: its input, logits and norm.
struct OwnHead {
  double kept = 0;    // from its forward pass to its weight gradient
  double input = 0;   // beside that: while its input gradient is made
  double weight = 0;  // and its weight gradient, what it hands on included
  double inner = 0;   // of `kept`: without its input
};
OwnHead own_head(const StepCase&);

// The embedding's backward pass: the gradient that came in, gathered.
double own_embedding(const StepCase&);
// Ids, targets, positions and losses of a microbatch.
double own_batch(const StepCase&);

}  // namespace trireme
