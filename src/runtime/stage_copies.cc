// Copies of stages (dualpipe): ranks of a pipeline that hold the same layers, and take other microbatches
// through them. Each adds up its own microbatches' gradients, over its replicas too; then copies add their
// sums, in rank order, and all make the same update: so they start equal and stay equal to the bit. Of what
// they hold alike each answers for a part, as replicas do: the norm counts it once, checkpoints hold it once.
#include "base/timed.h"
#include "runtime/microbatch.h"

namespace trireme {

void StageRunner::share_copies() {
  const Holders& holders = pipeline_->holders();
  const int rank = sharing_.pp.rank, first = sharing_.head_rank();
  const std::vector<int> alike = holders.alike(rank);
  for (int r : holders.ranks_of(int(holders.stages()) - 1))
    if (r != first) sharing_.head_ranks.push_back(r);
  const int copies = int(alike.size());
  const int copy = int(std::find(alike.begin(), alike.end(), rank) - alike.begin());
  for (ShardPlace* place : {&sharing_.place, &sharing_.expert_place})
    place->replica += copy * place->replicas, place->replicas *= copies;
  static constexpr Axis kPp[] = {Axis::pp};
  copies_ = &comms_->some(kPp, alike, "copies");
}

// Of own parts: where replicas divide gradients, each copy divides them alike.
void StageRunner::add_copies() {
  if (!copies_) return;
  Timed t(result_.comm_s);
  for (const Unit& u : params_.units)
    if (u.numel > 0 && !u.frozen) copies_->all_reduce({.buf = flat_.own(flat_.grads, params_, u)}, compute_);
}

}  // namespace trireme
