// Floating-point operations of a model in closed form (DESIGN.md section 5): 2 per multiply-add; causal
// attention at half; logits yes; embedding look-ups, norms, activations and recompute no. Every model here is
// finish()ed.
#pragma once
#include <cstdint>

#include "spec/model_spec.h"

namespace trireme {

// Of one token in a sequence of `seq`: the products with weights, and the token's mean share of attention,
// q.k and p.v over seq/2 keys. Wanted for MFU: 3 x this x tokens / (seconds x peak).
double forward_flops_per_token(const ModelSpec&, int64_t seq);
// Forward and backward: each product has two gradients of its own size.
double train_flops_per_token(const ModelSpec&, int64_t seq);

// Trainable numbers; a tied head counts once.
int64_t parameters(const ModelSpec&);
int64_t block_parameters(const ModelSpec&);      // of one block
int64_t embedding_parameters(const ModelSpec&);  // tokens and learned positions
int64_t head_parameters(const ModelSpec&);       // final norm and, unless tied, the output projection

}  // namespace trireme
