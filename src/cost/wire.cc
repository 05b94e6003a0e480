#include "cost/wire.h"

#include "base/checked.h"

namespace trireme {

int64_t wire_bytes_per_step(const ModelSpec& m, const ReplicaTraffic& t) {
  const int zero = t.division.zero;
  const int64_t elements = flat_elements(m, t.division);
  const int64_t weights = checked_mul(elements, t.weight_bytes), sums = checked_mul(elements, t.reduce_bytes);
  const int64_t reductions = zero >= 2 ? t.microbatches : 1;
  const int64_t across = checked_mul(checked_mul(2 * (t.groups - 1), sums), reductions);
  if (zero == 0) return across;
  const int64_t gathers = zero < 3 ? 1 : (t.reshard_after_forward ? 2 : 1) * t.microbatches;
  int64_t inside = checked_add(checked_mul(reductions, sums), checked_mul(gathers, weights));
  if (zero == 3 && t.reshard_after_forward)
    inside -= checked_mul(t.last_kept, checked_mul(last_layer_elements(m, t.division), t.weight_bytes));
  return checked_add(checked_mul(checked_mul(t.groups, t.division.shards - 1), inside), across);
}

namespace {
// Of latent attention: what compresses, with its norms and biases.
int64_t compressing_elements(const ModelSpec& m) {
  const int64_t columns = m.q_rank + m.kv_rank + m.rope_head_dim;
  return checked_add(checked_mul(columns, m.hidden + (m.attn_bias ? 1 : 0)), m.q_rank + m.kv_rank);
}
}  // namespace

int64_t sum_grad_elements(const ModelSpec& m, int64_t tp, bool sequence) {
  if (tp == 1) return 0;
  int64_t block = m.qk_norm ? 2 * m.head_dim : 0;
  if (m.kv_heads < tp) block += 2 * checked_mul(m.kv_size(), m.hidden + (m.biased_qkv() ? 1 : 0));
  if (m.latent()) block = compressing_elements(m);
  const int64_t norm = sequence ? (m.norm == "layer" ? 2 : 1) * m.hidden : 0;
  return checked_add(checked_mul(m.layers, block + 2 * norm), norm);
}

int64_t layer_wire_bytes_per_step(const ModelSpec& m, const LayerTraffic& t) {
  const int64_t others = t.tp - 1;
  const int64_t activations = checked_mul(checked_mul(t.rows, m.hidden), t.activation_bytes);
  const int64_t halves = t.sequence ? 10 * m.layers + (t.f32 ? 4 : 5) : 8 * m.layers + 4;
  const int64_t sums = checked_mul(checked_mul(others, activations), halves);
  const int64_t logits = checked_mul(checked_mul(3 * t.tp * others, t.rows), 4);
  const int64_t grads = checked_mul(2 * others * t.grad_bytes, sum_grad_elements(m, t.tp, t.sequence));
  return checked_add(checked_mul(t.microbatches, checked_add(sums, logits)),
                     checked_mul(t.reductions, grads));
}

}  // namespace trireme
