#include "cost/wire.h"

#include "cost/checked.h"

namespace trireme {

int64_t wire_bytes_per_step(const ModelSpec& m, const ReplicaTraffic& t) {
  const int zero = t.division.zero;
  const int64_t elements = flat_elements(m, t.division);
  const int64_t weights = checked_mul(elements, t.weight_bytes), sums = checked_mul(elements, t.reduce_bytes);
  const int64_t reductions = zero >= 2 ? t.microbatches : 1;
  const int64_t across = checked_mul(checked_mul(2 * (t.groups - 1), sums), reductions);
  if (zero == 0) return across;
  const int64_t gathers = zero < 3 ? 1 : (t.reshard_after_forward ? 2 : 1) * t.microbatches;
  const int64_t inside = checked_add(checked_mul(reductions, sums), checked_mul(gathers, weights));
  return checked_add(checked_mul(checked_mul(t.groups, t.division.shards - 1), inside), across);
}

}  // namespace trireme
