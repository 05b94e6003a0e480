#include "cost/flops.h"

namespace trireme {

double block_flops_per_token(const ModelSpec& m, int64_t seq, bool experts) {
  double h = double(m.hidden), q = double(m.q_size()), kv = double(m.kv_size());
  double projections =
      m.latent() ? 2 * double(latent_attention_weights(m)) : 2 * h * (q + 2 * kv) + 2 * q * h;
  // Scores and their sum of values, half of seq keys on average.
  double attention = projections + 2 * (double(seq) / 2) * (q + double(m.o_size()));
  if (!experts) return attention + 2 * h * double(m.ffn) * double(up_matrices(m) + 1);
  return attention + 2 * h *
                         (3 * (double(m.experts_per_token) * double(m.moe_ffn) + double(m.shared_ffn)) +
                          double(m.experts) + (m.shared_gate ? 1 : 0));
}

double recompute_flops_per_token(const ModelSpec& m, int64_t seq, bool experts, const Recompute& r) {
  if (r.full) return block_flops_per_token(m, seq, experts);
  const double h = double(m.hidden), q = double(m.q_size()), kv = double(m.kv_size());
  double flops = 0;
  const auto out = double(m.o_size());
  if (r.has("qkv") && m.latent())  // from what is compressed
    flops += 2 * (double(m.q_rank) * q + double(m.kv_rank * m.heads * (m.nope_head_dim + m.v_head_dim)));
  else if (r.has("qkv"))
    flops += 2 * h * (q + 2 * kv);
  if (r.has("o")) flops += 2 * (double(seq) / 2) * (q + out);
  if (r.has("mid")) flops += 2 * out * h;
  const int64_t wide = experts ? m.experts_per_token * m.moe_ffn + m.shared_ffn : m.ffn;
  if (r.has("u")) flops += 2 * h * double(wide * up_matrices(m));
  return flops;
}

double forward_flops_per_token(const ModelSpec& m, int64_t seq) {
  const auto with = double(m.expert_blocks()), layers = double(m.layers);
  double blocks = (layers - with) * block_flops_per_token(m, seq, false);
  if (with > 0) blocks += with * block_flops_per_token(m, seq, true);
  return blocks + 2 * double(m.hidden) * double(m.vocab);
}
double train_flops_per_token(const ModelSpec& m, int64_t seq) {
  return 3 * forward_flops_per_token(m, seq);
}
double frozen_flops_per_token(const ModelSpec& m, int64_t seq) {
  const double attention = 2 * (double(seq) / 2) * double(m.q_size() + m.o_size());
  return 2 * forward_flops_per_token(m, seq) + double(m.layers) * attention;
}

}  // namespace trireme
