#include "cost/flops.h"

#include "cost/checked.h"

namespace trireme {
namespace {

int64_t norm_parameters(const ModelSpec& m) {
  return m.norm == "layer" ? 2 * m.hidden : m.hidden;
}
int64_t up_matrices(const ModelSpec& m) {
  return m.activation == "swiglu" ? 2 : 1;
}

int64_t vocabulary_part(const ModelSpec& m, int64_t tp) {
  return (m.vocab + tp - 1) / tp;
}

}  // namespace

double forward_flops_per_token(const ModelSpec& m, int64_t seq) {
  double h = double(m.hidden), q = double(m.q_size()), kv = double(m.kv_size());
  double attention =
      2 * h * (q + 2 * kv)              // q, k, v
      + 2 * q * h                       // output projection
      + 2 * 2 * (double(seq) / 2) * q;  // scores and their sum of values, half of seq keys on average
  double mlp = 2 * h * double(m.ffn) * double(up_matrices(m) + 1);
  if (m.moe())
    mlp = 2 * h *
          (3 * (double(m.experts_per_token) * double(m.moe_ffn) + double(m.shared_ffn)) + double(m.experts) +
           (m.shared_gate ? 1 : 0));
  return double(m.layers) * (attention + mlp) + 2 * h * double(m.vocab);
}
double train_flops_per_token(const ModelSpec& m, int64_t seq) {
  return 3 * forward_flops_per_token(m, seq);
}

int64_t block_parameters(const ModelSpec& m, int64_t tp) {
  const int64_t q = m.q_size() / tp, kv = m.kv_heads < tp ? m.kv_size() : m.kv_size() / tp, ffn = m.ffn / tp,
                up = checked_mul(up_matrices(m), ffn);
  int64_t attn = checked_mul(m.hidden, 2 * q + 2 * kv) + (m.biased_qkv() ? q + 2 * kv : 0) +
                 (m.attn_bias ? m.hidden : 0) + (m.qk_norm ? 2 * m.head_dim : 0);
  int64_t mlp = checked_mul(m.hidden, up + ffn) + (m.mlp_bias ? up + m.hidden : 0);
  if (m.moe()) {
    int64_t matrices = checked_add(checked_mul(m.experts, 3 * m.moe_ffn), 3 * m.shared_ffn);
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
  return checked_add(checked_mul(m.layers, block_parameters(m, tp)),
                     checked_add(embedding_parameters(m, tp), head_parameters(m, tp)));
}

}  // namespace trireme
