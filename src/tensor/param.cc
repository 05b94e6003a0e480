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

ParamSet lay_out(std::span<const ParamDecl> decls, const Mesh& mesh, int rank) {
  ParamSet set;
  for (const ParamDecl& d : decls) {
    if (!d.tied_to.empty()) continue;
    require(set.find(d.name) == nullptr, "parameter " + d.name + " is declared twice");
    Param p;
    p.decl = d;
    p.box = local_slice(d.global, d.shard, mesh, rank);
    p.offset = set.numel;
    set.numel += p.numel();
    set.params.push_back(std::move(p));
  }
  return set;
}

}  // namespace trireme
