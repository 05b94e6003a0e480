// Floating-point operations of a model in closed form (DESIGN.md section 5): 2 per multiply-add; causal
// attention at half; logits yes; embedding look-ups, norms, activations and recompute no. Of experts those
// that a token visits, and the router. Every model here is finish()ed.
#pragma once
#include <cstdint>

#include "spec/model_spec.h"
#include "spec/parameters.h"
#include "spec/recompute.h"

namespace trireme {

// Of one token in a sequence of `seq`: the products with weights, and the token's mean share of attention,
// q.k and p.v over seq/2 keys. Wanted for MFU: 3 x this x tokens / (seconds x peak).
double forward_flops_per_token(const ModelSpec&, int64_t seq);
// Of that, one block: with experts, or a dense one.
double block_flops_per_token(const ModelSpec&, int64_t seq, bool experts);
// Of that, what is done once more: in full the whole block, else the products that make the tensors let go.
// Hardware FLOPs count it beside the model's.
double recompute_flops_per_token(const ModelSpec&, int64_t seq, bool experts, const Recompute&);
// Forward and backward: each product has two gradients of its own size.
double train_flops_per_token(const ModelSpec&, int64_t seq);
// With frozen weights (lora.rank) a product has the gradient of its input alone. The adapters' own products,
// about rank (in + out) / (in out) of a matrix's, are not counted.
double frozen_flops_per_token(const ModelSpec&, int64_t seq);

}  // namespace trireme
