// What of its communication trireme's own runtime lets compute wait for, in closed form: the order of events
// that optim/grad_sync, model/context_parallel and model/expert_exchange have, followed over a few layers,
// and what repeats multiplied. No share is fitted. docs/search.md, "Overlap".
//
// Seconds throughout. A link serves what is given to it in order (stream "dp"), each at its own price.
#pragma once
#include <cstdint>

namespace trireme {

// ---- the ring of context parallelism ----

// Of n ranks, each with an n-th of attention's `core` seconds a round: what compute waits for. hop: keys and
// values to the next rank; forward the next block travels while one is computed. Backward gradients travel
// behind them on the same stream, in f32 (sum_hop), and take one hop more, which nothing hides.
double ring_forward_waits(int64_t n, double core, double hop);
double ring_backward_waits(int64_t n, double core, double hop, double sum_hop);

// ---- replicas: gradients to their owners, weights from them ----

// A unit that is gathered and reduced as one: a block, the embedding, the head. again is in `input`; gather:
// of its weights, 0 where they are there; reduce: of its gradients; update: of the optimizer.
struct OwnUnit {
  double forward = 0, input = 0, weight = 0, gather = 0, reduce = 0, update = 0;
  double passes() const { return forward + input + weight; }
};

// A pipeline rank's part of the model in one of its chunks.
struct OwnStage {
  OwnUnit block, embedding, head;
  double blocks = 0;
  bool has_embedding = false, has_head = false;
  int zero = 0;        // of several replicas; without any all prices above are 0
  bool cast = false;   // gradients travel in another type than they are summed in: two at most are under way
  bool split = false;  // input and weight gradients are actions of their own
  // Whether a stage's forward is followed by its own backward, and that by its next forward: then the weights
  // of the layer between them are gathered again just when they were let go.
  bool turns_back = true, turns_on = true;
  bool forwards_first = false;  // all forward passes before all backward ones
  // zero 3: StepCase's.
  int64_t prefetch = 1;
  bool reshard_after_forward = true, reshard_last = true;
};

struct OwnWaits {
  double turn = 0;  // seconds a microbatch beside compute, in the steady state
  double ends = 0;  // once a step: what the first one waits more, and the sums behind the last one
  double last = 0;  // of `ends`: by which the last backward pass itself is longer, so its message is late
};
OwnWaits own_waits(const OwnStage&, int64_t microbatches);
// `turn` of a block among others.
double own_block_waits(const OwnStage&);

// The update of all units of a rank, each sent on its way while the next is updated, and all of them there.
double own_update(const OwnStage&);

}  // namespace trireme
