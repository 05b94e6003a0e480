#include "spec/parameters.h"

#include "base/checked.h"

namespace trireme {
namespace {

int64_t norm_parameters(const ModelSpec& m) {
  return m.norm == "layer" ? 2 * m.hidden : m.hidden;
}
int64_t vocabulary_part(const ModelSpec& m, int64_t tp) {
  return (m.vocab + tp - 1) / tp;
}

}  // namespace

int64_t latent_attention_weights(const ModelSpec& m, int64_t tp) {
  const int64_t heads = m.heads / tp, q = m.q_size() / tp;
  const int64_t queries =
      m.q_rank > 0 ? checked_mul(m.q_rank, checked_add(m.hidden, q)) : checked_mul(m.hidden, q);
  const int64_t keys_and_values =
      checked_add(checked_mul(m.hidden, m.kv_rank + m.rope_head_dim),
                  checked_mul(m.kv_rank, checked_mul(heads, m.nope_head_dim + m.v_head_dim)));
  return checked_add(checked_add(queries, keys_and_values), checked_mul(m.hidden, m.o_size() / tp));
}

namespace {

int64_t latent_parameters(const ModelSpec& m, int64_t tp) {
  const int64_t norms = m.q_rank + m.kv_rank,
                biases = m.attn_bias ? m.q_rank + m.kv_rank + m.rope_head_dim + m.hidden : 0;
  return checked_add(latent_attention_weights(m, tp), norms + biases);
}

}  // namespace

int64_t block_parameters(const ModelSpec& m, int64_t tp, bool experts) {
  const int64_t q = m.q_size() / tp, kv = m.kv_heads < tp ? m.kv_size() : m.kv_size() / tp, ffn = m.ffn / tp,
                up = checked_mul(up_matrices(m), ffn);
  int64_t attn = checked_mul(m.hidden, 2 * q + 2 * kv) + (m.biased_qkv() ? q + 2 * kv : 0) +
                 (m.attn_bias ? m.hidden : 0) + (m.qk_norm ? 2 * m.head_dim : 0);
  if (m.latent()) attn = latent_parameters(m, tp);
  int64_t mlp = checked_mul(m.hidden, up + ffn) + (m.mlp_bias ? up + m.hidden : 0);
  if (experts && m.moe()) {
    int64_t matrices = checked_add(checked_mul(m.experts, 3 * m.moe_ffn), 3 * m.shared_ffn / tp);
    mlp = checked_mul(m.hidden, checked_add(matrices, m.experts + (m.shared_gate ? 1 : 0)));
  }
  return checked_add(checked_add(attn, mlp), 2 * norm_parameters(m));
}
int64_t embedding_parameters(const ModelSpec& m, int64_t tp) {
  return checked_mul(m.hidden, vocabulary_part(m, tp) + (m.positions == "learned" ? m.max_positions : 0));
}
int64_t head_parameters(const ModelSpec& m, int64_t tp) {
  return checked_add(norm_parameters(m), m.tied ? 0 : checked_mul(m.hidden, vocabulary_part(m, tp)));
}
int64_t parameters(const ModelSpec& m, int64_t tp) {
  const int64_t with = m.expert_blocks();
  const int64_t blocks = checked_add(checked_mul(with, block_parameters(m, tp)),
                                     checked_mul(m.layers - with, block_parameters(m, tp, false)));
  return checked_add(blocks, checked_add(embedding_parameters(m, tp), head_parameters(m, tp)));
}

double block_expert_parameters(const ModelSpec& m) {
  return double(m.experts) * 3 * double(m.hidden) * double(m.moe_ffn);
}
double active_parameters(const ModelSpec& m) {
  if (!m.moe()) return double(parameters(m));
  const double resting = double(m.experts - m.experts_per_token) / double(m.experts);
  return double(parameters(m)) - double(m.expert_blocks()) * resting * block_expert_parameters(m);
}

}  // namespace trireme
