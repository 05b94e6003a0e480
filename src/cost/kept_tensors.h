// Bytes that a block keeps of a microbatch for its backward pass, tensor by tensor and in the type of its
// products: what Transformer Engine's modules save under Megatron Core, and what JAX keeps of a checkpointed
// block. step_memory.h sums them over blocks and microbatches.
#pragma once
#include "cost/step_time.h"

namespace trireme {

// Bytes a number takes where it waits for a product of this type, its scales with it: in 8 bits one scale a
// tensor, MXFP8 one byte every 32, NVFP4 half a byte and one byte every 16.
double product_input_bytes(NumberType);
// Of a block's parameter between steps: 8-bit weights are the parameters themselves (Keeping::weights8), or
// are cast from 16-bit ones, once a step, and kept beside them (Keeping::cast_weights).
double weight_bytes(const StepCase&);

// Of a block and a microbatch on a rank, but for unfused attention's scores.
double kept_tensors(const StepCase&, bool experts);
// What stays between passes of a block of which StepCase::saved says what is not done again; without the
// block's input.
double saved_products(const StepCase&, bool experts);

}  // namespace trireme
