// ZeRO 0-3 and hybrid sharding over flat units (Rajbhandari et al. 2020, arXiv 1910.02054; FSDP, Zhao et al.
// 2023, arXiv 2304.11277): memory, casts and collectives of weights and gradients.
//
// The rank's program (program/lower.h) decides when each call is made; everything here happens at those
// places of the program, after waiting, so memory does not depend on time. Collectives run on the stream
// "dp", next to compute.
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
#include "program/program.h"
#include "tensor/arena.h"
#include "tensor/flat_state.h"

namespace trireme {

// What travels where is not all: of a parameter with `sum_grad` axes each rank along them has a summand of
// the gradient. They are added first, on the compute stream, in the gradients' own type, neighbours together.
struct GradSyncOptions {
  int zero = 0;
  DType wire = DType::f32;  // type of gradients there
};

class GradSync {
 public:
  // Groups of units, and of those of experts (Unit::experts). Everything given outlives this.
  // comms: where the groups of sum_grad come from, made here; null: one rank.
  GradSync(const ParamSet&, const FlatState&, const GradSyncOptions&, const SyncGroups&,
           const SyncGroups& experts, CommSet* comms, Device&, Arena&);
  GradSync(const GradSync&) = delete;
  ~GradSync();

  // The input of lower(), without names.
  std::vector<UnitShape> shapes() const;
  void start_step() { waited_s_ = 0; }
  void run(const Op&);  // gather to retire, spread and settle (program/program.h)
  // Where layers find the unit's weights (ZeRO 3) or write its gradients (ZeRO 2 and 3); empty: nowhere.
  Tensor gathered(size_t unit) const { return gathered_[unit].full ? *gathered_[unit].full : Tensor(); }
  Tensor slot(size_t unit) const { return slots_[unit] ? *slots_[unit] : Tensor(); }
  bool gathers(size_t unit) const { return options_.zero == 3 && groups(unit).shard; }
  bool slots(size_t unit) const { return options_.zero >= 2 && groups(unit).shard; }
  void measure(LocalNorms* norms) { norms_ = norms; }  // measures each `sum` from now on; null: none
  std::vector<UnitSum> sums_of(size_t unit) const;     // the summands that `sum` adds
  void zero_unstarted(size_t unit) const;              // gradients of this rank without a contribution

  void abandon();  // after a step was left: waits for what is in flight, forgets it
  // The weights of every unit from their owners, where they are kept whole (after a load).
  void spread_weights();

  double waited_s() const { return waited_s_; }  // seconds that compute waited here since start_step
  int64_t units_live() const { return live_; }   // gathered now

 private:
  struct Gathered {
    Owned full;
    Event arrived{};
  };
  struct Summands {      // neighbouring parameters of a unit
    size_t first, last;  // of the set
    Communicator* group;
  };
  struct Pending {     // a reduction in flight
    size_t unit = 0;   // the first of it
    Owned slot, wire;  // its memory; neither: the flat gradients themselves
    Event reduced{};
  };
  const SyncGroups& groups(size_t unit) const { return set_.units[unit].experts ? experts_ : groups_; }
  bool alone() const { return groups_.alone() && experts_.alone(); }
  void gather(size_t unit);
  void arrive(size_t unit);
  void release(size_t unit);
  void open(size_t unit);
  void sum(size_t unit);
  void reduce(size_t first, size_t last);
  void retire(bool adds);  // the oldest reduction
  void spread(size_t unit);
  void settle();
  void find_summands(CommSet&);
  void add_summands(size_t unit);
  void wait(Event);
  void on_wire();  // work from here on comes after what compute was given

  const ParamSet& set_;
  const FlatState& flat_;
  GradSyncOptions options_;
  SyncGroups groups_, experts_;
  Device& device_;
  Arena& arena_;
  Stream compute_, dp_;
  std::vector<Gathered> gathered_;  // by unit
  int64_t live_ = 0;
  std::vector<std::vector<Summands>> summands_;  // by unit
  std::vector<Owned> slots_;                     // by unit: whole gradients that a backward pass adds into
  std::vector<Pending> pending_;                 // oldest first
  double waited_s_ = 0;
  LocalNorms* norms_ = nullptr;
};

// Runs the operation. Layers then find weights and gradients of its unit where they are.
void run_unit_op(GradSync&, const Op&, ParamSet& of_layers);
// abandon(). Layers find no weights that were gathered.
void abandon(GradSync&, ParamSet& of_layers);

}  // namespace trireme
