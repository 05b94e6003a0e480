#include "forecast/layout_bound.h"

#include <algorithm>

#include "forecast/scaled_run.h"
#include "forecast/search_layout.h"

namespace trireme {
namespace {

LayoutSpec degrees_of(const StepCase& c) {
  LayoutSpec l;
  l.tp = c.tp;
  l.pp = c.pp;
  l.dp = c.dp;
  l.cp = c.cp;
  l.order = order_of(c.nearest);
  return l;
}

}  // namespace

void LayoutBound::clear() {
  plain_.clear();
  for (auto& [number, bound] : on_) bound.clear();
}

template <class One>
BoundCase LayoutBound::joined(const StepCase& c, const One& one) {
  const NumberList* devices = kinds_->of_ranks(degrees_of(c));
  works_.assign(size_t(kinds_->numbers()), nullptr);
  BoundCase all;
  int64_t message = 0;
  for (const int64_t number : *devices) {
    if (works_[size_t(number)]) continue;
    const DeviceKinds::Kind& kind = kinds_->at(number);
    BoundStep& bound = on_[number];
    all = one(bound, on_kind(c, kind), kind);
    works_[size_t(number)] = all.work;
    message = std::max(message, all.work->message);
  }
  for (const int64_t number : *devices) on_[number].work().message = message;
  all.devices = devices;
  all.works = works_;
  return all;
}

StepSeconds LayoutBound::of(StepBound& bound, std::string_view schedule, const StepCase& c, size_t kind,
                            size_t sharding, bool exact) {
  if (!kinds_) return plain_.of(bound, schedule, c, figures_, fits_, keys_, kind, sharding, exact);
  const BoundCase all = joined(c, [&](BoundStep& one, const StepCase& at, const DeviceKinds::Kind& by) {
    return one.bounded(schedule, at, by.figures, by.fits, keys_, kind, sharding);
  });
  const BoundParts parts = bound.of(all, exact);
  const DeviceKinds::Kind& busiest = kinds_->at(parts.device);
  return on_[parts.device].divided(parts, on_kind(c, busiest), busiest.figures, busiest.fits, kind, sharding);
}

double LayoutBound::least(StepBound& bound, std::string_view schedule, const StepCase& c, size_t kind) {
  if (!kinds_) return plain_.least(bound, schedule, c, figures_, fits_, kind);
  return 1e-9 * bound.least(joined(c, [&](BoundStep& one, const StepCase& at, const DeviceKinds::Kind& by) {
    return one.passes_alone(schedule, at, by.figures, by.fits, kind);
  }));
}

double LayoutBound::sharded(StepBound& bound, std::string_view schedule, const StepCase& c, size_t kind,
                            size_t sharding) {
  if (!kinds_) return plain_.sharded(bound, schedule, c, figures_, fits_, keys_, kind, sharding);
  return 1e-9 * bound.sharded(joined(c, [&](BoundStep& one, const StepCase& at, const DeviceKinds::Kind& by) {
    return one.bounded(schedule, at, by.figures, by.fits, keys_, kind, sharding);
  }));
}

}  // namespace trireme
