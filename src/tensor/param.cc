#include "tensor/param.h"

#include <algorithm>

namespace trireme {

Param* ParamSet::find(std::string_view name) {
  auto it = std::find_if(params.begin(), params.end(), [&](const Param& p) { return p.decl.name == name; });
  return it == params.end() ? nullptr : &*it;
}
const Param* ParamSet::find(std::string_view name) const {
  return const_cast<ParamSet*>(this)->find(name);
}

int64_t padded_unit(int64_t numel, int shards) {
  if (shards == 1) return numel;
  int64_t blocks = (numel + kFlatBlock - 1) / kFlatBlock;
  return shards * ((blocks + shards - 1) / shards) * kFlatBlock;
}

ParamSet lay_out(std::span<const std::vector<ParamDecl>> units, const Mesh& mesh, int rank, int shards) {
  ParamSet set;
  set.shards = shards;
  for (const std::vector<ParamDecl>& decls : units) {
    Unit u{.first = set.params.size(), .offset = set.numel};
    for (const ParamDecl& d : decls) {
      if (!d.tied_to.empty()) continue;
      require(set.find(d.name) == nullptr, "parameter " + d.name + " is declared twice");
      Param p;
      p.decl = d;
      p.box = local_slice(d.global, d.shard, mesh, rank);
      p.offset = u.offset + u.numel;
      u.numel += p.numel();
      set.params.push_back(std::move(p));
    }
    u.last = set.params.size();
    u.padded = padded_unit(u.numel, shards);
    set.numel += u.padded, set.parameters += u.numel;
    set.units.push_back(u);
  }
  return set;
}

ParamSet lay_out(const std::vector<ParamDecl>& decls, const Mesh& mesh, int rank) {
  return lay_out(std::span(&decls, 1), mesh, rank);
}

Range own_part(const Unit& u, const ShardPlace& at) {
  int64_t size = u.padded / at.shards;
  return {at.shard * size, (at.shard + 1) * size};
}

Range own_share(const Unit& u, const ShardPlace& at) {
  Range part = own_part(u, at);
  int64_t blocks = (part.size() + kFlatBlock - 1) / kFlatBlock;
  int64_t each = (blocks + at.replicas - 1) / at.replicas * kFlatBlock;
  return {std::min(part.end, part.begin + at.replica * each),
          std::min(part.end, part.begin + (at.replica + 1) * each)};
}

}  // namespace trireme
