// Counts of a model's trainable numbers, in closed form. Every model here is finish()ed.
#pragma once
#include <cstdint>

#include "spec/model_spec.h"

namespace trireme {

// Trainable numbers of the model. A router's bias is not trained; a tied head counts once.
// tp: the share that one of tp tensor parallel ranks stores. Heads, the feed-forward and the vocabulary are
// divided (the last rounded up). Key/value heads are whole if there are fewer than ranks. Norms, learned
// positions and biases behind sums are whole.
int64_t parameters(const ModelSpec&, int64_t tp = 1);
// One block's share: a block with experts in a model of experts, or one of its dense blocks.
int64_t block_parameters(const ModelSpec&, int64_t tp = 1, bool experts = true);
int64_t embedding_parameters(const ModelSpec&, int64_t tp = 1);  // tokens and learned positions
int64_t head_parameters(const ModelSpec&,
                        int64_t tp = 1);  // final norm and, unless tied, the output projection
// The experts' matrices of one block, without router and shared expert.
double block_expert_parameters(const ModelSpec&);
// Parameters that a token visits: all but the experts it does not choose.
double active_parameters(const ModelSpec&);
// Number of matrices from hidden to ffn in a feed-forward.
inline int64_t up_matrices(const ModelSpec& m) {
  return m.activation == "swiglu" ? 2 : 1;
}
// The matrices of one block's latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): those that
// compress, which tp does not divide, those that expand, and the output's.
int64_t latent_attention_weights(const ModelSpec&, int64_t tp = 1);

}  // namespace trireme
