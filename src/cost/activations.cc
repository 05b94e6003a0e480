#include "cost/activations.h"

#include <algorithm>

#include "cost/checked.h"

namespace trireme {

int64_t block_activation_bytes(const ModelSpec& m, const ActivationShape& a) {
  constexpr int64_t kStatistic = 4;  // f32
  const int64_t q = m.heads / a.tp, kv = std::max<int64_t>(1, m.kv_heads / a.tp), ffn = m.ffn / a.tp;
  // Input, norm1, mid, norm2 and the norms' statistics: a row each.
  const int64_t norms = 2 * (m.norm == "layer" ? 2 : 1) * kStatistic;
  const int64_t between = checked_add(checked_mul(4 * m.hidden, a.bytes), norms);
  // q, k, v and the attention's output; of a head its logsumexp, and with qk_norm its norm.
  int64_t divided = checked_mul((2 * q + 2 * kv) * m.head_dim, a.bytes) + q * kStatistic;
  if (m.qk_norm) divided += checked_mul((q + kv) * m.head_dim, a.bytes) + (q + kv) * kStatistic;
  divided = checked_add(divided, checked_mul((m.activation == "swiglu" ? 3 : 2) * ffn, a.bytes));
  const int64_t own_rows = a.sequence ? a.rows / a.tp : a.rows;
  return checked_add(checked_mul(own_rows, between), checked_mul(a.rows, divided));
}

}  // namespace trireme
