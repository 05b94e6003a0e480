#include "optim/matrix_owners.h"

#include <algorithm>
#include <numeric>

namespace trireme {
namespace {

int64_t sum(const std::vector<int64_t>& v) {
  return std::accumulate(v.begin(), v.end(), int64_t(0));
}

double flops_of(const Param& p) {
  return newton_schulz_flops(p.decl.global[0], p.decl.global[1]);
}

// The dim that tp divides; -1: none.
int divided_dim(const Param& p) {
  for (int d : {0, 1})
    if (p.box.extent[d] < p.decl.global[d]) return d;
  return -1;
}

// To each the rank with the least work so far: matrices by falling FLOPs, of equal ones in order.
void spread(const ParamSet& set, std::vector<OwnedMatrix>& matrices, int ranks) {
  std::vector<size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return flops_of(set.params[matrices[a].param]) > flops_of(set.params[matrices[b].param]);
  });
  std::vector<double> load(static_cast<size_t>(ranks));
  for (size_t i : order) {
    auto least = std::min_element(load.begin(), load.end());
    *least += flops_of(set.params[matrices[i].param]);
    matrices[i].owner = int(least - load.begin());
  }
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
  spread(set, out, shards);
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
    plan.largest.cover(p.decl.global[0], p.decl.global[1]);
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

const MatrixBox* DividedPlan::box_of(size_t param) const {
  for (const MatrixBox& b : boxes)
    if (b.param == param) return &b;
  return nullptr;
}

DividedPlan plan_divided(const ParamSet& set, const Unit& u, const ShardPlace& at, const AxisPlace& tp) {
  DividedPlan plan;
  const auto ranks = size_t(tp.size);
  plan.to_owner.resize(ranks), plan.from_rank.resize(ranks);
  if (tp.size == 1) return plan;
  const std::vector<OwnedMatrix> all = matrix_owners(set, u, at.shards);
  for (int shard = 0; shard < at.shards; shard++) {
    std::vector<OwnedMatrix> own;
    for (const OwnedMatrix& m : all)
      if (m.owner == shard && divided_dim(set.params[m.param]) >= 0) own.push_back({m.param, 0});
    spread(set, own, tp.size);
    std::stable_sort(own.begin(), own.end(),
                     [](const OwnedMatrix& a, const OwnedMatrix& b) { return a.owner < b.owner; });
    std::vector<int64_t> of_owner(ranks);
    int64_t sent = 0;
    for (const OwnedMatrix& m : own) {
      const Param& p = set.params[m.param];
      int64_t& there = of_owner[size_t(m.owner)];
      if (shard == at.shard) plan.boxes.push_back({m.param, divided_dim(p), sent, there, m.owner});
      there += p.numel(), sent += p.numel();
    }
    plan.most_sent = std::max(plan.most_sent, sent);
    plan.most_received =
        std::max(plan.most_received, tp.size * *std::max_element(of_owner.begin(), of_owner.end()));
    if (shard != at.shard) continue;
    plan.to_owner = of_owner;
    std::fill(plan.from_rank.begin(), plan.from_rank.end(), of_owner[size_t(tp.rank)]);
  }
  return plan;
}

}  // namespace trireme
