// ZeRO 0-3 and hybrid sharding over flat units (Rajbhandari et al. 2020, arXiv 1910.02054; FSDP, Zhao et al.
// 2023, arXiv 2304.11277): when weights are gathered, gradients reduced, and both let go.
//
// The runner walks the layers and says what it is about to use and what it is done with; everything here
// happens at those places of the program, after waiting, so memory does not depend on time. Collectives run
// on the stream "dp", next to compute.
//
//   zero  weights           gradients                       collectives of a step of m microbatches
//   0     whole             whole, reduced once             all_reduce of each bucket
//   1     whole             whole, reduced once             reduce_scatter, all_gather of new weights
//   2     whole             shards; whole in a slot         m x reduce_scatter, all_gather of new weights
//   3     shards; gathered  shards; whole in a slot         2m x all_gather (m kept), m x reduce_scatter
//
// The wire type may differ from the gradients': a unit's sum on this rank is then cast into a buffer of the
// wire type, and what comes back is rounded to it once, under every stage. With hybrid sharding a shard is
// summed inside its group, rounded, and summed over the groups, rounded again.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "comm/comm_set.h"
#include "device/device.h"
#include "optim/noise_scale.h"
#include "optim/optimizer.h"
#include "tensor/arena.h"

namespace trireme {

// What travels where is not all: of a parameter with `sum_grad` axes each rank along them has a summand of
// the gradient. They are added first, on the compute stream, in the gradients' own type, neighbours together.
struct GradSyncOptions {
  int zero = 0;
  DType wire = DType::f32;   // of gradients
  int64_t bucket_bytes = 0;  // zero 0: units are reduced together up to so many; 0 = each alone
  int64_t prefetch = 1;      // zero 3: units gathered ahead of the one in use
};

// shard: the ranks that divide a unit; replicas: those that hold the same part. Each null when it has one
// rank.
struct SyncGroups {
  Communicator *shard = nullptr, *replicas = nullptr;
  bool alone() const { return !shard && !replicas; }
};

// One use of a unit's weights by a layer of a forward or backward pass.
struct UnitUse {
  uint32_t unit = 0;
  bool release = true;  // the last one before the weights may go
};

class GradSync {
 public:
  // Groups of units, and of those of experts (Unit::experts). Everything given outlives this.
  // comms: where the groups of sum_grad come from, made here; null: one rank.
  GradSync(ParamSet&, FlatState&, const GradSyncOptions&, const SyncGroups&, const SyncGroups& experts,
           CommSet* comms, Device&, Arena&);
  GradSync(const GradSync&) = delete;
  ~GradSync();

  // ---- weights; calls without effect below zero 3 ----
  void follow(std::span<const UnitUse>);  // the uses to come, in order; they outlive the walk
  void need(size_t unit);  // the next use: gathered when it returns, its successors on their way
  void done(size_t unit);
  void gather_ahead();  // the next uses are on their way when it returns

  // ---- gradients ----
  void start_step();        // nothing is summed yet
  void open(size_t unit);   // before a backward pass adds into the unit's gradients
  void ready(size_t unit);  // this rank's sum is complete: reduce it
  void measure(LocalNorms* norms) { norms_ = norms; }  // of what is reduced from now on; null: nothing
  std::vector<UnitSum> sums_of(size_t unit) const;     // what ready() adds up first
  void finish();  // every reduction is done: own parts of the gradients hold the sum over ranks

  // ---- update ----
  void updated(size_t unit);  // own part of the weights is new: the others get it
  void settle();              // all have all

  void abandon();  // after a step was left: waits for what is under way, forgets it
  // The weights of every unit from their owners, where they are kept whole (after a load).
  void spread_weights();

  double waited_s() const { return waited_s_; }  // seconds that compute waited here since start_step
  int64_t units_live() const { return live_; }   // gathered now

 private:
  struct Gathered {
    Owned full;
    Event arrived{};
    bool waited = false;
  };
  struct Summands {      // neighbouring parameters of a unit
    size_t first, last;  // of the set
    Communicator* group;
  };
  struct Pending {               // a reduction under way
    size_t first = 0, last = 0;  // units
    Owned slot, wire;            // what it reduces in; neither: the flat gradients themselves
    Event reduced{};
  };
  const SyncGroups& groups(size_t unit) const { return set_.units[unit].experts ? experts_ : groups_; }
  bool alone() const { return groups_.alone() && experts_.alone(); }
  bool gathers() const { return options_.zero == 3 && (groups_.shard || experts_.shard); }
  bool gathers(size_t unit) const { return options_.zero == 3 && groups(unit).shard; }
  bool slots(size_t unit) const { return options_.zero >= 2 && groups(unit).shard; }
  void gather(size_t unit);
  void release(size_t unit);
  void find_summands(CommSet&);
  void zero_unstarted(size_t unit);
  void add_summands(size_t unit);
  void flush();  // zero 0: the bucket of units that are ready
  void reduce(Pending);
  void retire();  // the oldest reduction
  void accumulate(const Unit&, const Tensor& sum);
  void wait(Event);
  void on_wire();  // work from here on comes after what compute was given

  ParamSet& set_;
  FlatState& flat_;
  GradSyncOptions options_;
  SyncGroups groups_, experts_;
  Device& device_;
  Arena& arena_;
  Stream compute_, dp_;
  std::vector<Gathered> gathered_;  // by unit
  std::span<const UnitUse> walk_;
  size_t at_ = 0;  // of walk_: the next use
  int64_t live_ = 0;
  std::vector<std::vector<Summands>> summands_;  // by unit
  std::vector<Owned> slots_;                     // by unit: whole gradients that a backward pass adds into
  std::vector<char> started_;     // by unit: own part of flat gradients holds a sum (zero 2 and 3)
  std::vector<Pending> pending_;  // oldest first
  size_t bucket_first_ = 0, bucket_last_ = 0;  // units that are ready and not under way; empty if equal
  double waited_s_ = 0;
  LocalNorms* norms_ = nullptr;
};

}  // namespace trireme
