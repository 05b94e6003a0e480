// Where each action of a microbatch stands in a schedule.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "schedule/schedule.h"

namespace trireme {

struct ActionPlace {
  int rank = -1, step = -1;
  bool there() const { return rank >= 0; }
};

// (kind, stage, microbatch) -> place. A table of all that could be where the schedule has a fair part of it;
// else by hash, for a text may name stage and microbatch 32767 with one action.
class ActionPlaces {
 public:
  explicit ActionPlaces(const Schedule&);  // of its sizes; empty
  ActionPlace at(Act kind, int stage, int mb) const {
    if (kind > kLast || stage < 0 || stage >= stages_ || mb < 0 || mb >= microbatches_) return {};
    if (!table_.empty()) return table_[index(kind, stage, mb)];
    const auto it = sparse_.find(index(kind, stage, mb));
    return it == sparse_.end() ? ActionPlace{} : it->second;
  }
  ActionPlace at(const Action& a) const { return at(a.kind, a.stage, a.mb); }
  // Of an action with a microbatch, inside the schedule's sizes. The place of one that is there already
  // stays, and is returned; else one that is not there().
  ActionPlace put(const Action&, ActionPlace);

 private:
  static constexpr Act kLast = Act::RecvB;
  size_t index(Act kind, int stage, int mb) const {
    return (size_t(kind) * size_t(stages_) + size_t(stage)) * size_t(microbatches_) + size_t(mb);
  }
  int stages_ = 0, microbatches_ = 0;
  std::vector<ActionPlace> table_;
  std::unordered_map<size_t, ActionPlace> sparse_;
};

}  // namespace trireme
