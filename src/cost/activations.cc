#include "cost/activations.h"

#include <algorithm>

#include "base/checked.h"

namespace trireme {
namespace {
constexpr int64_t kStatistic = 4;  // f32

// Of a token, q, k, v and the attention's output; of a head its logsumexp, and with qk_norm its norm.
int64_t attention_bytes(const ModelSpec& m, const ActivationShape& a) {
  const int64_t q = m.heads / a.tp, kv = std::max<int64_t>(1, m.kv_heads / a.tp);
  int64_t bytes = checked_mul((2 * q + 2 * kv) * m.head_dim, a.bytes) + q * kStatistic;
  if (m.qk_norm) bytes += checked_mul((q + kv) * m.head_dim, a.bytes) + (q + kv) * kStatistic;
  return bytes;
}

// Of a token, what is compressed, each rank whole, and the same normed; q, k without positions, v and the
// output of a rank's heads.
int64_t latent_bytes(const ModelSpec& m, const ActivationShape& a) {
  const int64_t heads = m.heads / a.tp, norms = m.q_rank > 0 ? 2 : 1;
  const int64_t whole = 2 * (m.q_rank + m.kv_rank) + m.rope_head_dim;
  const int64_t columns = whole + heads * (m.head_dim + m.nope_head_dim + 2 * m.v_head_dim);
  return checked_mul(columns, a.bytes) + (heads + norms) * kStatistic;
}
}  // namespace

int64_t block_activation_bytes(const ModelSpec& m, const ActivationShape& a) {
  const int64_t ffn = m.ffn / a.tp;
  // Input, norm1, mid, norm2 and the norms' statistics: a row each.
  const int64_t norms = 2 * (m.norm == "layer" ? 2 : 1) * kStatistic;
  const int64_t between = checked_add(checked_mul(4 * m.hidden, a.bytes), norms);
  const int64_t divided = checked_add(m.latent() ? latent_bytes(m, a) : attention_bytes(m, a),
                                      checked_mul((m.activation == "swiglu" ? 3 : 2) * ffn, a.bytes));
  const int64_t own_rows = a.sequence ? a.rows / a.tp : a.rows;
  return checked_add(checked_mul(own_rows, between), checked_mul(a.rows, divided));
}

}  // namespace trireme
