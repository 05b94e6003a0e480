#include "runtime/sharing.h"

#include "spec/run_schedule.h"

namespace trireme {

Sharing sharing_of(const RunSpec& run, CommSet* comms) {
  Sharing s;
  if (!comms) return s;
  static constexpr Axis kDp[] = {Axis::dp};
  s.dp = comms->mesh().size(Axis::dp);
  s.dp_rank = comms->mesh().coord(comms->rank(), Axis::dp);
  s.tp = comms->mesh().place(comms->rank(), Axis::tp);
  static constexpr Axis kTp[] = {Axis::tp};
  if (s.tp.size > 1) s.layers.tp = &comms->along(kTp);
  if (s.dp == 1) return s;
  // Whose tokens are of one unit: sequences and microbatches are whole on a rank.
  if (run.moe.unit == "global" && run.moe.aux_loss > 0) s.layers.balance = &comms->along(kDp);
  int group = run.layout.shard_group > 0 ? int(run.layout.shard_group) : s.dp;
  s.zero = effective_zero(run.layout);
  if (s.zero == 0) group = 1;
  s.place = {
      .shards = group, .shard = s.dp_rank % group, .replicas = s.dp / group, .replica = s.dp_rank / group};
  if (group == s.dp) {
    s.shard = &comms->along(kDp);
  } else if (group == 1) {
    s.replicas = &comms->along(kDp);
  } else {
    s.shard = &comms->inner(kDp, group);
    s.replicas = &comms->across(kDp, group);
  }
  return s;
}

}  // namespace trireme
