#include "train/replicas.h"

#include <algorithm>

#include "base/file.h"

namespace trireme {
namespace {

uint64_t hash_of(const Tensor& t) {
  return t.bytes() == 0 ? 0 : hash64(t.data, size_t(t.bytes()));
}

// The ranks that hold what `rank` holds: those of its place in their shard groups, or, where there is one
// group and its weights are whole, all replicas. Lowest first.
std::vector<int> twins(const StageRunner& r, int rank) {
  static constexpr Axis kDp[] = {Axis::dp};
  const Mesh& mesh = r.comms()->mesh();
  const ShardPlace& at = r.sharing().place;
  std::vector<int> out;
  for (int other : mesh.group(rank, kDp)) {
    const bool same_part = mesh.coord(other, Axis::dp) % at.shards == mesh.coord(rank, Axis::dp) % at.shards;
    if (same_part || at.replicas == 1) out.push_back(other);
  }
  return out;
}

struct Held {
  std::string name;
  Tensor data;
};

// What a rank has in common with its twins, whole buffers or parameter by parameter.
std::vector<Held> held(const StageRunner& r, bool by_parameter) {
  const FlatState& flat = r.flat();
  const bool shards_too = r.sharing().place.replicas > 1;
  std::vector<Held> out;
  if (!by_parameter) {
    out.push_back({"weights", flat.weights});
    if (shards_too && flat.master.data != flat.weights.data) out.push_back({"master", flat.master});
    for (const Tensor& s : flat.state)
      if (shards_too) out.push_back({"state", s});
    return out;
  }
  for (const Param& p : r.params().params) {
    if (r.sharing().zero < 3) out.push_back({p.decl.name, p.weight});
    if (!shards_too) continue;
    out.push_back({p.decl.name + "/master", r.state_tensor(p, "")});
    for (const StateDecl& s : r.state_decls())
      if (s.has(p.decl)) out.push_back({p.decl.name + "/" + s.name, r.state_tensor(p, s.name)});
  }
  return out;
}

// [rank][held]
std::vector<std::vector<uint64_t>> everyones(const StageRunner& r, const std::vector<uint64_t>& mine) {
  const size_t world = size_t(r.comms()->world()), n = mine.size();
  std::vector<uint64_t> all(world * n);
  gather_bytes(r.comms()->control(), std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  std::vector<std::vector<uint64_t>> out;
  for (size_t k = 0; k < world; k++)
    out.emplace_back(all.begin() + std::ptrdiff_t(k * n), all.begin() + std::ptrdiff_t((k + 1) * n));
  return out;
}

// The rank that stands against most of its twins, or, of two, the higher.
int odd_one(const std::vector<int>& ranks, const std::vector<std::vector<uint64_t>>& hashes, size_t i) {
  auto likes = [&](int rank) {
    return std::count_if(ranks.begin(), ranks.end(),
                         [&](int other) { return hashes[size_t(other)][i] == hashes[size_t(rank)][i]; });
  };
  int odd = ranks.back();
  for (int rank : ranks)
    if (likes(rank) < likes(odd)) odd = rank;
  return odd;
}

}  // namespace

void compare_replicas(const StageRunner& r, int64_t step) {
  if (!r.comms() || twins(r, r.comms()->rank()).size() == 1 ||
      (r.sharing().zero == 3 && r.sharing().place.replicas == 1))
    return;
  uint64_t whole = 0;
  for (const Held& h : held(r, false)) whole = whole * 0x9E3779B97F4A7C15u + hash_of(h.data);
  std::vector<std::vector<uint64_t>> all = everyones(r, {whole});
  bool same = true;
  for (int rank = 0; rank < r.comms()->world(); rank++)
    for (int other : twins(r, rank)) same &= all[size_t(rank)] == all[size_t(other)];
  if (same) return;

  const std::vector<Held> parts = held(r, true);
  std::vector<uint64_t> mine;
  for (const Held& h : parts) mine.push_back(hash_of(h.data));
  all = everyones(r, mine);
  for (size_t i = 0; i < parts.size(); i++)
    for (int rank = 0; rank < r.comms()->world(); rank++) {
      const std::vector<int> ranks = twins(r, rank);
      const int odd = odd_one(ranks, all, i), other = ranks.front() == odd ? ranks.back() : ranks.front();
      if (all[size_t(odd)][i] == all[size_t(other)][i]) continue;
      // The odd one says so itself; the others hear it here.
      if (r.comms()->rank() != odd) agree_max(r.comms()->control(), 0);
      run_failed(
          "step {}: its {} differs from that of rank {}, though replicas hold the same: memory or a "
          "processor is "
          "faulty, or an op is not deterministic; the last checkpoint before that step is good",
          step, parts[i].name, other);
    }
  run_failed("step {}: replicas differ outside of every parameter", step);
}

}  // namespace trireme
