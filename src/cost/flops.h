// Floating-point operations of a model in closed form (DESIGN.md section 5): 2 per multiply-add; causal
// attention at half; logits yes; embedding look-ups, norms, activations and recompute no. Of experts those
// that a token visits, and the router. Every model here is finish()ed.
#pragma once
#include <cstdint>

#include "spec/model_spec.h"
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

// Trainable numbers (a router's bias is none); a tied head counts once. tp: of them, what one of so many
// tensor parallel ranks stores: heads, the feed-forward and the vocabulary divided (the last rounded up),
// key/value heads whole where they are fewer, norms, learned positions and the biases behind sums whole.
int64_t parameters(const ModelSpec&, int64_t tp = 1);
// Of one block: with experts where the model has them, or one of its dense blocks.
int64_t block_parameters(const ModelSpec&, int64_t tp = 1, bool experts = true);
int64_t embedding_parameters(const ModelSpec&, int64_t tp = 1);  // tokens and learned positions
int64_t head_parameters(const ModelSpec&,
                        int64_t tp = 1);  // final norm and, unless tied, the output projection

}  // namespace trireme
