#include "base/error.h"
#include "program/lower.h"

namespace trireme {

GatherPlan::GatherPlan(const RankShape& shape, const ShardPolicy& policy, std::vector<Op>& out)
    : shape_(shape), prefetch_(policy.prefetch), out_(out), units_(shape.units.size()) {
  for (const UnitShape& u : shape.units) any_ = any_ || u.gathers;
}

void GatherPlan::gather(uint32_t unit, int32_t layer) {
  State& s = units_[unit];
  if (s.gathered || !shape_.units[unit].gathers) return;
  s = {.gathered = true, .op = int32_t(out_.size())};
  out_.push_back({.kind = OpKind::gather, .layer = layer, .unit = int32_t(unit)});
}

// A layer that comes next again (the head after its forward pass) has to release its weights first. Meanwhile
// the weights of the layer after it are gathered.
void GatherPlan::ahead() {
  if (!any_) return;
  constexpr size_t kUnitsOfLayer = 2;  // its own, and a shared table
  const auto in_use = [&](uint32_t unit) {
    return units_[unit].gathered && (units_[unit].arrived || (at_ > 0 && uses_[at_ - 1].unit == unit));
  };
  size_t first = at_;
  while (first < uses_.size() && first < at_ + kUnitsOfLayer && in_use(uses_[first].unit)) first++;
  for (size_t i = first; i < uses_.size() && i < first + size_t(prefetch_); i++)
    gather(uses_[i].unit, uses_[i].layer);
}

void GatherPlan::need(uint32_t unit) {
  if (!any_) return;
  require(at_ < uses_.size() && uses_[at_].unit == unit, "a layer runs that the uses did not foresee");
  const int32_t layer = uses_[at_++].layer;
  gather(unit, layer);
  // The next use of this very unit in another pass gathers again, when this one has released it.
  ahead();
  State& s = units_[unit];
  if (s.arrived || !s.gathered) return;
  s.arrived = true;
  out_.push_back({.kind = OpKind::arrive, .layer = layer, .unit = int32_t(unit), .after = s.op});
}

void GatherPlan::done(uint32_t unit) {
  if (!any_) return;
  require(at_ > 0, "done() before need()");
  size_t use = at_;
  while (use-- > 0 && uses_[use].unit != unit) continue;
  if (use < at_ && uses_[use].release && units_[unit].gathered) {
    State& s = units_[unit];
    if (!s.arrived)
      out_.push_back(
          {.kind = OpKind::arrive, .layer = uses_[use].layer, .unit = int32_t(unit), .after = s.op});
    out_.push_back({.kind = OpKind::release, .layer = uses_[use].layer, .unit = int32_t(unit)});
    s = {};
  }
  ahead();
}

}  // namespace trireme
