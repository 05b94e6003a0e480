#include "tensor/param.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "base/error.h"
#include "tensor/flat_state.h"

namespace trireme {

Param* ParamSet::find(std::string_view name) {
  for (std::vector<Param>* list : {&params, &buffers}) {
    auto it = std::find_if(list->begin(), list->end(), [&](const Param& p) { return p.decl.name == name; });
    if (it != list->end()) return &*it;
  }
  return nullptr;
}
const Param* ParamSet::find(std::string_view name) const {
  return const_cast<ParamSet*>(this)->find(name);
}

void ParamSet::show(size_t unit, Tensor Param::*view, const Tensor& whole) {
  const Unit& u = units[unit];
  for (size_t i = u.first; i < u.last; i++) {
    Param& p = params[i];
    p.*view = whole ? p.view(whole, p.offset - u.offset) : Tensor();
  }
}

std::vector<const Param*> ParamSet::held() const {
  std::vector<const Param*> all;
  for (const std::vector<Param>* list : {&params, &buffers})
    for (const Param& p : *list) all.push_back(&p);
  return all;
}

std::vector<const Param*> ParamSet::saved() const {
  std::vector<const Param*> all = held();
  std::erase_if(all, [](const Param* p) { return p->decl.frozen && !p->decl.buffer; });
  return all;
}

int64_t padded_unit(int64_t numel, int shards) {
  if (shards == 1) return numel;
  int64_t blocks = (numel + kFlatBlock - 1) / kFlatBlock;
  return shards * ((blocks + shards - 1) / shards) * kFlatBlock;
}

namespace {
bool divided_raggedly(const ShardSpec& s, const Mesh& mesh) {
  return s.ragged && mesh.size(s.axes_of_dim[0]) > 1;
}

Param place(const ParamDecl& d, const Mesh& mesh, int rank) {
  Param p;
  p.decl = d;
  p.box = local_slice(d.global, d.shard, mesh, rank);
  p.stored = stored_shape(d.global, d.shard, mesh);
  p.answers = !d.copy && (d.expert || d.shard.divides_along(Axis::tp) || mesh.coord(rank, Axis::tp) == 0);
  return p;
}
}  // namespace

// Appends one unit of a layer's parameters: its experts (where they are apart), what is tied to another
// stage, or the rest. A unit is trained or frozen as a whole.
static void add_unit(ParamSet& set, Unit u, const std::vector<ParamDecl>& decls, bool apart, const Mesh& mesh,
                     int rank, std::unordered_set<std::string_view>& names) {
  u.first = set.params.size(), u.offset = set.numel, u.part_offset = set.part;
  for (const ParamDecl& d : decls) {
    if (!d.tied_to.empty() || (apart && d.expert != u.experts) || d.shared != u.shared) continue;
    if ((d.frozen && !d.buffer) != u.frozen) continue;
    if (!names.insert(d.name).second) run_failed("parameter {} is declared twice", d.name);
    (d.buffer ? set.buffers : set.params).push_back(place(d, mesh, rank));
  }
  std::stable_partition(set.params.begin() + std::ptrdiff_t(u.first), set.params.end(),
                        [&](const Param& p) { return !divided_raggedly(p.decl.shard, mesh); });
  u.last = set.params.size();
  int64_t stored = 0;
  for (size_t i = u.first; i < u.last; i++) {
    Param& p = set.params[i];
    require(stored == u.numel, "two parameters of a unit have rows to complete them");
    p.offset = u.offset + u.numel;
    u.numel += p.numel(), stored += p.stored.numel();
    if (!p.decl.hidden_matrix) u.others += p.stored.numel();  // as on every rank
  }
  const int shards = u.experts ? set.expert_shards : set.shards;
  u.padded = padded_unit(stored, shards);
  set.numel += u.padded, set.part += u.padded / shards, set.parameters += u.numel;
  set.units.push_back(u);
}

ParamSet lay_out(std::span<const std::vector<ParamDecl>> units, const Mesh& mesh, int rank, int shards,
                 int expert_shards) {
  ParamSet set;
  set.shards = shards, set.expert_shards = expert_shards;
  set.divided = mesh.size(Axis::tp) > 1;
  std::unordered_set<std::string_view> names;
  const bool others_replicate = mesh.size(Axis::ep) > 1 || mesh.size(Axis::tp) > 1;
  const auto any = [&](size_t l, auto what) { return std::any_of(units[l].begin(), units[l].end(), what); };
  const auto add_units = [&](size_t l, bool frozen) {
    const bool apart = others_replicate && any(l, [](const ParamDecl& d) { return d.expert; });
    set.divided |= any(l, [](const ParamDecl& d) { return d.copy; });
    add_unit(set, {.layer = l, .frozen = frozen}, units[l], apart, mesh, rank, names);
    if (any(l, [](const ParamDecl& d) { return d.shared; }))
      add_unit(set, {.layer = l, .shared = true, .frozen = frozen}, units[l], apart, mesh, rank, names);
    if (apart)
      add_unit(set, {.layer = l, .experts = true, .frozen = frozen}, units[l], apart, mesh, rank, names);
  };
  for (size_t l = 0; l < units.size(); l++) add_units(l, false);
  set.trained = set.numel;
  set.trained_part = set.part;
  for (size_t l = 0; l < units.size(); l++)
    if (any(l, [](const ParamDecl& d) { return d.frozen; })) add_units(l, true);
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

Range inside(const Param& p, const Unit& u, const Range& of_unit) {
  const int64_t at = p.offset - u.offset, n = p.numel();
  const int64_t begin = std::clamp(of_unit.begin - at, int64_t(0), n);
  return {begin, std::clamp(of_unit.end - at, begin, n)};
}

namespace {
int64_t others_of(const Unit& u, int shards) {
  return std::min(u.padded / shards, u.others);
}
}  // namespace

int64_t others_numel(const ParamSet& set, int shards) {
  int64_t n = 0;
  for (const Unit& u : set.units) n += others_of(u, shards);
  return n;
}

Range others_range(const ParamSet& set, const Unit& unit, const ShardPlace& at, size_t param) {
  int64_t begin = 0;
  for (const Unit& u : set.units) {
    if (&u == &unit) break;
    begin += others_of(u, at.shards);
  }
  const Range own = own_part(unit, at);
  for (size_t i = unit.first; i < param; i++)
    if (!set.params[i].decl.hidden_matrix) begin += inside(set.params[i], unit, own).size();
  return {begin, begin + inside(set.params[param], unit, own).size()};
}

Tensor FlatState::own(const Tensor& buffer, const ParamSet& set, const Unit& u) const {
  const Range part = own_part(u, place_of(u));
  return whole(buffer, set) ? buffer.narrow(0, u.offset + part.begin, part.size())
                            : buffer.narrow(0, u.part_offset, part.size());
}

}  // namespace trireme
