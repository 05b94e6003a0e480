// A lower bound of a step's replayed time, for a search that prices many layouts. It is made of longest paths
// through the operations of real Programs (program/lower.h):
// - within a stage: from an action's begin to its end, over its passes and its collectives among replicas;
// - between stages: over the actions and messages of the schedule;
// - at the end: updates and the collectives behind them.
// A path is a count of each price. Paths are found once, at the prices of some layout. They are paths at any
// other prices too, so the sum of their prices is never more than the replay. docs/search.md.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/interned.h"
#include "model/build.h"
#include "sim/world.h"

namespace trireme {

// Inputs of a layout's bound.
struct BoundCase {
  std::string_view schedule = "1f1b";
  int64_t pp = 1, chunks = 1, microbatches = 1;
  bool replicas = false, expert_replicas = false;  // several ranks of dp and cp have a block; an expert
  bool exchanges = false;                          // ep > 1
  bool recomputes = false;
  bool reshard_after_forward = true;
  // kinds, message, update (of one rank, for all) and the policy; stages are not read.
  const WorldWork* work = nullptr;
  const NumberList* stage_layers = nullptr;  // interned; null: by the cut
  // Several kinds of devices: the number of each pipeline rank's kind (interned), and works by number. Works
  // differ in their prices alone, and the message has one price. `work` is one of them.
  const NumberList* devices = nullptr;
  std::span<const WorldWork* const> works;
};

// Nanoseconds; they add up to `total`.
struct BoundParts {
  double busiest = 0;   // passes of the busiest rank over all microbatches
  double head = 0;      // part of busiest: the head's
  int64_t device = 0;   // the busiest rank's, of BoundCase::devices
  double bubble = 0;    // other passes on the longest path, less the busiest rank's that are not on it
  double messages = 0;  // on the path
  double replicas = 0;  // waits for collectives among replicas
  double update = 0;    // the optimizer and the collectives after it
  double total = 0;
};

class StepBound {
 public:
  // Requires: cut as LayoutSpec::cut.
  StepBound(const ModelSpec&, int64_t seq, std::string_view cut);
  ~StepBound();
  // At most the replayed step. exact: the longest paths at these very prices are looked for; else those of
  // similar prices may do, which are found already.
  BoundParts of(const BoundCase&, bool exact);
  // Returns a rougher bound at once: a rank's passes, between the first microbatch's way to it and the last
  // one's way back. Does not read collectives among replicas.
  double least(const BoundCase&);
  // A closer one that takes little longer: or the collectives among replicas, which are one after another;
  // and the step's end.
  double sharded(const BoundCase&);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
