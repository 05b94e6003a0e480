// Bytes of a device's memory in a run elsewhere, in closed form: what
// step_time.h is to seconds. What this program will run is booked to the byte
// instead (runtime/booking.h).
#pragma once
#include <array>

#include "cost/step_time.h"

namespace trireme {

// Of a pipeline rank at its fullest moment.
struct StepMemory {
  double states = 0;       // weights, gradients, optimizer
  double activations = 0;  // of microbatches between forward and backward, of those whose weight gradient
                           // waits, and one layer's own while its backward pass is at it
  double gradients = 0;    // of one layer's weights, in 16 bits, on their way to the step's; what else passes
                           // (Keeping): gathered weights, a stage's gradients
  double logits = 0;       // of the rank with the head
  double base = 0;         // context, buffers of collectives: declared, not derived
  double total = 0;
  // With several kinds of devices: bytes that the rank's device has beyond the device with the least memory.
  double more = 0;
  double used() const { return total - more; }  // compares with the least memory
};
// The fullest rank's. Fit::kept and Fit::base are looked at.
StepMemory step_memory(const StepCase&, const FitValues&);

// Ranks of a pipeline one of which is the fullest: the first, the last and, where these have fewer blocks,
// those beside them; of ZB-H1 and -H2 also the last of those with the most blocks.
struct PipelinePlace {
  int64_t rank = 0;
  double layers = 0, held_layers = 0, tables = 0;
  bool operator==(const PipelinePlace&) const = default;
};
struct PipelinePlaces {
  std::array<PipelinePlace, 4> at;
  int count = 0;
  bool operator==(const PipelinePlaces&) const = default;
  const PipelinePlace* begin() const { return at.data(); }
  const PipelinePlace* end() const { return at.data() + count; }
};
PipelinePlaces pipeline_places(const StepCase&);
StepMemory rank_memory(const StepCase&, const FitValues&, const PipelinePlace&);
double rank_states(const StepCase&, const PipelinePlace&);

// Bytes of a layer's activations of one microbatch, nothing done again
// (Korthikanti et al. 2022, equation 2 with fused softmax: s b h (18 + 4 f /
// h), which is their 34 where f = 4 h; Keeping has what softwares keep instead).
double layer_activations(const StepCase&, bool experts);

// By layer, for simulators: states of parameters that a rank of tp and ep holds; what a layer keeps of a
// microbatch from its forward pass to its weight gradient, holds besides from the beginning of its input
// gradient to then (what is done again, and the gradient that came in: weight gradients are products of
// both), and what the pass that adds to the gradients of its weights has of its own.
double state_bytes(const StepCase&, double dense, double experts);
double kept_bytes(const StepCase&, const FitValues&, bool experts);
double waiting_bytes(const StepCase&, const FitValues&, bool experts);
double backward_bytes(const StepCase&, bool experts);
// Logits of a microbatch until its weight gradient, in 16 bits, and their f32 copy in the loss.
double logit_bytes(const StepCase&, const FitValues&);
double loss_bytes(const StepCase&, const FitValues&);

// What a run needs at the least: the states of its fullest rank.
double least_memory(const StepCase&);

}  // namespace trireme
