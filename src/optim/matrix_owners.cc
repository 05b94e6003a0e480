#include "optim/matrix_owners.h"

#include <algorithm>
#include <numeric>

namespace trireme {
namespace {

int64_t sum(const std::vector<int64_t>& v) {
  return std::accumulate(v.begin(), v.end(), int64_t(0));
}

double flops_of(const Param& p) {
  return newton_schulz_flops(p.box.extent[0], p.box.extent[1]);
}

// Elements of `holder`'s pieces of `owner`'s matrices, appended to pieces.
int64_t pieces_between(const ParamSet& set, const Unit& u, const std::vector<OwnedMatrix>& owners, int shards,
                       int holder, int owner, int64_t at, std::vector<MatrixPiece>* pieces) {
  int64_t elements = 0;
  for (const OwnedMatrix& m : owners) {
    if (m.owner != owner) continue;
    const Param& p = set.params[m.param];
    const Range part = own_part(u, {.shards = shards, .shard = holder}), r = inside(p, u, part);
    if (r.size() == 0) continue;
    if (pieces) pieces->push_back({m.param, r, p.offset - u.offset + r.begin - part.begin, at + elements});
    elements += r.size();
  }
  return elements;
}

}  // namespace

std::vector<OwnedMatrix> matrix_owners(const ParamSet& set, const Unit& u, int shards) {
  std::vector<OwnedMatrix> out;
  for (size_t i = u.first; i < u.last; i++)
    if (set.params[i].decl.hidden_matrix) out.push_back({i, 0});
  std::vector<size_t> order(out.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return flops_of(set.params[out[a].param]) > flops_of(set.params[out[b].param]);
  });
  std::vector<double> load(static_cast<size_t>(shards));
  for (size_t i : order) {
    auto least = std::min_element(load.begin(), load.end());
    *least += flops_of(set.params[out[i].param]);
    out[i].owner = int(least - load.begin());
  }
  return out;
}

int64_t MatrixPlan::sent() const {
  return sum(to_owner);
}
int64_t MatrixPlan::received() const {
  return sum(from_rank);
}

MatrixPlan plan_matrices(const ParamSet& set, const Unit& u, const ShardPlace& at) {
  MatrixPlan plan;
  const std::vector<OwnedMatrix> owners = matrix_owners(set, u, at.shards);
  std::vector<int64_t> whole(size_t(at.shards), 0);
  for (const OwnedMatrix& m : owners) {
    const Param& p = set.params[m.param];
    plan.largest.cover(p.box.extent[0], p.box.extent[1]);
    whole[size_t(m.owner)] += p.numel();
    if (m.owner == at.shard) plan.matrices.push_back(m.param);
  }
  plan.most_received = *std::max_element(whole.begin(), whole.end());
  int64_t arrived = 0, leaving = 0;
  for (int r = 0; r < at.shards; r++) {
    int64_t held = 0;
    for (int owner = 0; owner < at.shards; owner++)
      held += pieces_between(set, u, owners, at.shards, r, owner, 0, nullptr);
    plan.most_sent = std::max(plan.most_sent, held);
    plan.to_owner.push_back(pieces_between(set, u, owners, at.shards, at.shard, r, leaving, &plan.mine));
    plan.from_rank.push_back(pieces_between(set, u, owners, at.shards, r, at.shard, arrived, &plan.owned));
    leaving += plan.to_owner.back(), arrived += plan.from_rank.back();
  }
  return plan;
}

}  // namespace trireme
