#include "schedule/places.h"

#include <utility>

namespace trireme {

ActionPlaces::ActionPlaces(const Schedule& s) : stages_(s.stages), microbatches_(s.microbatches) {
  constexpr size_t kFair = 16;  // places for an action, at most
  size_t actions = 0;
  for (const auto& rank : s.ranks) actions += rank.size();
  const size_t all = (size_t(kLast) + 1) * size_t(stages_) * size_t(microbatches_);
  if (all <= kFair * actions) table_.resize(all);
}

ActionPlace ActionPlaces::put(const Action& a, ActionPlace here) {
  ActionPlace& place =
      table_.empty() ? sparse_[index(a.kind, a.stage, a.mb)] : table_[index(a.kind, a.stage, a.mb)];
  return place.there() ? place : std::exchange(place, here);
}

}  // namespace trireme
