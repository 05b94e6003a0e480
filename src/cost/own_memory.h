// Bytes of a device's memory in a run of trireme's own, in closed form: what its layers keep of each
// microbatch (own_block.h), and what ZeRO gathers and sends beside them, in the order of its backward pass
// (optim/grad_sync.h). Of a run elsewhere: step_memory.h. docs/search.md, "Memory".
#pragma once
#include <array>

#include "cost/step_memory.h"

namespace trireme {

// Places of a backward pass at which a rank may be at its fullest. What ZeRO holds there depends on nothing
// that is held of microbatches.
enum class OwnPlace {
  head_input,
  head_weight,
  head_sum,      // its gradients leave
  behind_input,  // the block behind the head, or where there is none the first one
  behind_weight,
  behind_sum,
  next_input,  // the one behind that
  block_input,
  block_weight,
  block_sum,
  first_input,  // beside the embedding
  first_weight,
  embedding,
  embedding_sum,
  // Of the last microbatch, whose sums go to the other ranks without ZeRO 2 and 3.
  last_head,
  last_behind,
  last_next,
  last_block,
  last_first,
  last_embedding,
  count
};
inline constexpr size_t kOwnPlaces = size_t(OwnPlace::count);

// What a rank holds of microbatches, at each place at most; below 0: it is never there. A function of
// division, microbatch, schedule and recompute.
struct OwnHeld {
  struct At {
    double activations = -1, logits = 0;
  };
  std::array<At, kOwnPlaces> at;
  double base = 0;
};
OwnHeld own_held(const StepCase&, const FitValues&, const PipelinePlace&);

// What it keeps between steps, and holds besides at each place. A function of division, sharding and the
// place's blocks.
struct OwnStates {
  double states = 0;
  std::array<double, kOwnPlaces> passing{};  // gathered weights, whole gradients, sums on their way
};
OwnStates own_states(const StepCase&, const PipelinePlace&);

// The fullest of the places.
StepMemory own_fullest(const OwnStates&, const OwnHeld&);
StepMemory own_rank_memory(const StepCase&, const FitValues&, const PipelinePlace&);

}  // namespace trireme
