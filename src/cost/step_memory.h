// Bytes of a device's memory in a run elsewhere, in closed form: what
// step_time.h is to seconds. What this program will run is booked to the byte
// instead (runtime/booking.h).
#pragma once
#include "cost/step_time.h"

namespace trireme {

// Of the fullest stage, first or last, at its fullest moment.
struct StepMemory {
  double states = 0;       // weights, gradients, optimizer
  double activations = 0;  // kept between forward and backward, and one layer's
                           // own while it is done again
  double gradients = 0;    // of one layer's weights, in 16 bits, on their way to the step's
  double logits = 0;       // of the last stage
  double base = 0;         // context, buffers of collectives: declared, not derived
  double total = 0;
};
// Fit::kept and Fit::base are looked at.
StepMemory step_memory(const StepCase&, const FitValues&);

// Bytes of a layer's activations of one microbatch, nothing done again
// (Korthikanti et al. 2022, equation 2 with fused softmax: s b h (18 + 4 f /
// h), which is their 34 where f = 4 h).
double layer_activations(const StepCase&, bool experts);

// By layer, for simulators: states of parameters that a rank of tp and ep holds; what a layer keeps of a
// microbatch from its forward to its backward pass, and has besides in its backward pass (what is done again,
// and gradients of its weights); and of logits.
double state_bytes(const StepCase&, double dense, double experts);
double kept_bytes(const StepCase&, const FitValues&, bool experts);
double backward_bytes(const StepCase&, const FitValues&, bool experts);
double logit_bytes(const StepCase&, const FitValues&);

// What a run needs at the least: its states.
double least_memory(const StepCase&);

}  // namespace trireme
