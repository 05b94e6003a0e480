#include "runtime/sharing.h"

#include "schedule/holders.h"
#include "spec/run_schedule.h"

namespace trireme {

namespace {

constexpr Axis kPipeline[] = {Axis::pp};

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

// Copies of stages (dualpipe): ranks of a pipeline that hold the same layers, and take other microbatches
// through them. Each adds up its own microbatches' gradients, over its replicas too; then copies add their
// sums, in rank order, and all make the same update. So they start equal and stay bit-identical. Each
// copy answers for a part of its weights, as replicas do: the norm counts it once, checkpoints hold it once.
void share_copies(Sharing& s, const Holders& holders, CommSet& comms) {
  const int rank = s.pp.rank;
  const std::vector<int> alike = holders.alike(rank);
  for (int r : holders.ranks_of(int(holders.stages()) - 1))
    if (r != s.head_rank()) s.head_ranks.push_back(r);
  const int copies = int(alike.size());
  const int copy = int(std::find(alike.begin(), alike.end(), rank) - alike.begin());
  for (ShardPlace* place : {&s.place, &s.expert_place}) {
    place->replica += copy * place->replicas;
    place->replicas *= copies;
  }
  s.copies = &comms.some(kPipeline, alike, "copies");
}

// Groups of ranks that add up gradients of the same layers, or of the same table.
void share_ends(Sharing& s, const RunSpec& run, const Schedule& schedule, CommSet& comms) {
  const Holders holders(schedule);
  s.head_ranks = {holders.rank_of(schedule.stages - 1, 0)};
  if (schedule.copies > 1) return share_copies(s, holders, comms);
  const int ends[] = {holders.rank_of(0, 0), s.head_rank()};
  if (run.model.tied && ends[0] != ends[1] && (s.pp.rank == ends[0] || s.pp.rank == ends[1]))
    s.tied = &comms.some(kPipeline, ends, "tied");
}

}  // namespace

Sharing sharing_of(const RunSpec& run, CommSet* comms, std::span<const Schedule> schedules) {
  Sharing s;
  if (!comms) return s;
  s.world = comms->world();
  s.dp = comms->mesh().size(Axis::dp);
  s.dp_rank = comms->mesh().coord(comms->rank(), Axis::dp);
  const AxisPlace tp = comms->mesh().place(comms->rank(), Axis::tp);
  s.tp = {.size = tp.size, .rank = tp.rank, .sequence = run.layout.sequence && tp.size > 1};
  s.pp = comms->mesh().place(comms->rank(), Axis::pp);
  static constexpr Axis kTp[] = {Axis::tp};
  if (tp.size > 1) s.tp.group = &comms->along(kTp);
  share_context(s, run, *comms);
  share_replicas(s, run, *comms);
  if (run.model.moe()) share_experts(s, *comms), share_units(s, run, *comms);
  if (s.pp.size > 1) share_ends(s, run, schedules.back(), *comms);
  return s;
}

}  // namespace trireme
