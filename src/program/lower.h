// A rank's actions lowered to operations. It alone decides when a unit is gathered, released, reduced and
// updated, and how far ahead; when a message is posted; and when what a microbatch holds is freed.
#pragma once
#include <optional>
#include <span>

#include "program/program.h"
#include "schedule/holders.h"

namespace trireme {

struct LowerInput {
  std::span<const Action> actions;   // the actions of one rank's step
  const Holders* holders = nullptr;  // none: the rank has all stages
  std::span<const int> send_ends;    // by action (schedule.h); empty: all sends are read at the end
  std::optional<size_t> settle_at;   // post-validation: the action of the rank's SettlePoint
};

// A pure function: equal arguments give equal programs. Errors (require): ZeRO 2 and 3 without a ReduceGrad
// with every weight gradient, ZeRO 3 without an Unshard with every use of weights.
Program lower(const LowerInput&, const RankShape&, const ShardPolicy&);

// A forward pass over `stages` of microbatch 0, without a backward pass: evaluation and generation. Messages
// are received when they are needed.
Program lower_forward(std::span<const int> stages, const Holders*, int rank, const RankShape&,
                      const ShardPolicy&);

// When weights are gathered and released (ZeRO 3). Operations are appended to `out`.
class GatherPlan {
 public:
  GatherPlan(const RankShape&, const ShardPolicy&, std::vector<Op>& out);
  // A use to come, in order. release: the last one before the weights may go.
  struct Use {
    uint32_t unit = 0;
    bool release = true;
    int32_t layer = -1;
  };
  void add(Use u) { uses_.push_back(u); }
  std::vector<Use>& uses() { return uses_; }
  // The next use: gathered and waited for, its successors in flight.
  void need(uint32_t unit);
  void done(uint32_t unit);
  // Two passes run by turns, each of which has `prefetch` units in flight.
  void interleave() { prefetch_ *= 2; }
  void ahead();  // the next uses are in flight

 private:
  struct State {
    bool gathered = false, arrived = false;
    int32_t op = -1;
  };
  void gather(uint32_t unit, int32_t layer);
  const RankShape& shape_;
  int64_t prefetch_;
  bool any_ = false;
  std::vector<Op>& out_;
  std::vector<Use> uses_;
  size_t at_ = 0;             // the next one in uses_
  std::vector<State> units_;  // by unit
};

// When gradients get memory, leave, and are waited for.
class ReducePlan {
 public:
  ReducePlan(const RankShape&, const ShardPolicy&, std::vector<Op>& out);
  void open(uint32_t unit);                   // before a backward pass adds into the unit's gradient
  void ready(uint32_t unit);                  // this rank's gradient is complete
  void stage(uint32_t first, uint32_t last);  // by_stage: all units of a stage at once
  void finish();                              // the rest, and waiting for all

 private:
  // Reductions in flight that hold a separate buffer.
  static constexpr size_t kMostPending = 2;
  struct Pending {
    uint32_t first;
    int32_t op;
  };
  void flush();
  void reduce(uint32_t first, uint32_t last);
  void retire();
  void retire_down() {
    while (pending_.size() >= kMostPending) retire();
  }
  const RankShape& shape_;
  const ShardPolicy& policy_;
  std::vector<Op>& out_;
  std::vector<char> open_, summed_;  // by unit: its gradient has memory; its owner's part holds a sum
  std::vector<Pending> pending_;     // oldest first
  uint32_t bucket_first_ = 0, bucket_last_ = 0;  // ready and not in flight; empty if equal
};

}  // namespace trireme
