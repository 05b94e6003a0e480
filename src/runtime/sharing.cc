#include "runtime/sharing.h"

#include "spec/run_schedule.h"

namespace trireme {

namespace {

// dp and cp together: both have the same weights and other tokens.
void share_replicas(Sharing& s, const RunSpec& run, CommSet& comms) {
  static constexpr Axis kDp[] = {Axis::dp}, kBoth[] = {Axis::dp, Axis::cp};
  const Axes same = s.cp.size > 1 ? Axes(kBoth) : Axes(kDp);
  const int all = comms.mesh().size(same), rank = comms.mesh().coord(comms.rank(), same);
  if (all == 1) return;
  int group = run.layout.shard_group > 0 ? int(run.layout.shard_group) : all;
  s.zero = effective_zero(run.layout);
  if (s.zero == 0) group = 1;
  s.place = {.shards = group, .shard = rank % group, .replicas = all / group, .replica = rank / group};
  if (group == all) {
    s.replicating.shard = &comms.along(same);
  } else if (group == 1) {
    s.replicating.replicas = &comms.along(same);
  } else {
    s.replicating.shard = &comms.inner(same, group);
    s.replicating.replicas = &comms.across(same, group);
  }
}

void share_context(Sharing& s, const RunSpec& run, CommSet& comms) {
  static constexpr Axis kCp[] = {Axis::cp};
  s.cp = comms.mesh().place(comms.rank(), Axis::cp);
  if (s.cp.size == 1) return;
  s.layers.cp.comm = &comms.along(kCp);
  s.layers.cp.placement = placement_of(run.layout);
  s.layers.cp.ulysses = run.layout.cp_method == "ulysses";
}

// Ranks of edp hold the same experts; with ZeRO they divide their state, in one group.
void share_experts(Sharing& s, CommSet& comms) {
  const Mesh& mesh = comms.mesh();
  if (mesh.size(Axis::ep) == 1 && mesh.size(Axis::tp) == 1) return;  // as all else, over dp and cp
  static constexpr Axis kEp[] = {Axis::ep}, kEdp[] = {Axis::edp};
  if (mesh.size(Axis::ep) > 1) s.layers.ep = &comms.along(kEp);
  const AxisPlace edp = mesh.place(comms.rank(), Axis::edp);
  if (edp.size == 1) return;
  if (s.zero == 0)
    s.expert_place = {.replicas = edp.size, .replica = edp.rank}, s.experts.replicas = &comms.along(kEdp);
  else
    s.expert_place = {.shards = edp.size, .shard = edp.rank}, s.experts.shard = &comms.along(kEdp);
}

// Whose tokens are of one unit of balancing losses: cp and tp divide sequences, dp the global batch. Of a
// capacity layers gather over tp and cp, and ask the replicas only for counts.
void share_units(Sharing& s, const RunSpec& run, CommSet& comms) {
  static constexpr Axis kReplicas[] = {Axis::dp};
  if (run.moe.capacity > 0 && run.moe.unit == "global" && s.dp > 1)
    s.layers.capacity = &comms.along(kReplicas);
  if (run.moe.aux_loss == 0) return;
  std::vector<Axis> axes;
  if (run.moe.unit == "global" && s.dp > 1) axes.push_back(Axis::dp);
  if (s.cp.size > 1) axes.push_back(Axis::cp);
  if (s.tp.size > 1) axes.push_back(Axis::tp);
  if (!axes.empty()) s.layers.balance = &comms.along(axes);
}

}  // namespace

Sharing sharing_of(const RunSpec& run, CommSet* comms) {
  Sharing s;
  if (!comms) return s;
  s.dp = comms->mesh().size(Axis::dp);
  s.dp_rank = comms->mesh().coord(comms->rank(), Axis::dp);
  s.tp = comms->mesh().place(comms->rank(), Axis::tp);
  s.pp = comms->mesh().place(comms->rank(), Axis::pp);
  static constexpr Axis kTp[] = {Axis::tp};
  if (s.tp.size > 1) s.layers.tp = &comms->along(kTp);
  share_context(s, run, *comms);
  share_replicas(s, run, *comms);
  if (run.model.moe()) share_experts(s, *comms), share_units(s, run, *comms);
  return s;
}

}  // namespace trireme
