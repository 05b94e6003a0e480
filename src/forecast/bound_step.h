// The price of one of trireme's own layouts before it is replayed: the lower bound of its step
// (forecast/step_bound.h), divided by cause.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "cost/step_time.h"
#include "forecast/step_bound.h"
#include "forecast/work_prices.h"

namespace trireme {

class BoundStep {
 public:
  // For many layouts of one division. Collectives among replicas depend on sharding, offload and the order of
  // axes; passes depend on the microbatch, recompute, whether there are several chunks, and the order of
  // axes.
  // Another division of the same run, on a cluster of the same devices.
  void clear() { passes_.clear(), states_.clear(); }
  // schedule: a name of the search. keys: for those that StepCase lacks. exact: as StepBound::of().
  // Requires: StepCase::software.ordered(). kind, sharding: numbers of the microbatch and recompute, and of
  // the sharding and place of its state.
  StepSeconds of(StepBound&, std::string_view schedule, const StepCase&, const DeviceFigures&,
                 const FitValues&, const LayoutSpec& keys, size_t kind, size_t sharding, bool exact = false);
  // The parts of of(): what is bounded, which stays valid until the next call; and the bound divided by
  // cause.
  BoundCase bounded(std::string_view schedule, const StepCase&, const DeviceFigures&, const FitValues&,
                    const LayoutSpec& keys, size_t kind, size_t sharding);
  StepSeconds divided(const BoundParts&, const StepCase&, const DeviceFigures&, const FitValues&, size_t kind,
                      size_t sharding);
  // The case that least() bounds.
  BoundCase passes_alone(std::string_view schedule, const StepCase&, const DeviceFigures&, const FitValues&,
                         size_t kind);
  WorldWork& work() { return work_; }
  // Seconds that no sharding takes less than, at once (StepBound::least).
  double least(StepBound&, std::string_view schedule, const StepCase&, const DeviceFigures&, const FitValues&,
               size_t kind);
  // Seconds that this sharding takes at least, nearly at once (StepBound::sharded).
  double sharded(StepBound&, std::string_view schedule, const StepCase&, const DeviceFigures&,
                 const FitValues&, const LayoutSpec& keys, size_t kind, size_t sharding);

 private:
  struct Passes {
    std::array<LayerWork, kWorkLayers> layers;
    int64_t message = 0;
    struct More {
      StepParts parts;
      int64_t update = 0;
      double slower = 1;
    };
    std::optional<More> more;  // for all but least()
  };
  Passes& passes_of(const StepCase&, const DeviceFigures&, const FitValues&, size_t kind);
  const Passes& all_of(const StepCase&, const DeviceFigures&, const FitValues&, size_t kind);
  void set_passes(const Passes&);  // writes work_
  // Dense layers and those with experts, whatever the division.
  struct Compute {
    LayerCompute dense, experts;
  };
  const Compute& compute_of(const StepCase&, const DeviceFigures&, const FitValues&);
  struct States {
    std::array<LayerWork, kWorkLayers> layers;
    double update = 0, offload = 0;  // seconds, of the most loaded rank
  };
  const States& states_of(const StepCase&, const DeviceFigures&, const FitValues&, const Passes&,
                          size_t sharding);
  // Its work is work_.
  BoundCase case_of(std::string_view schedule, const StepCase&, const DeviceFigures&, const FitValues&,
                    const LayoutSpec& keys, const Passes&, const States&);

  std::vector<std::array<std::unique_ptr<Passes>, kOrders>> passes_;  // by kind and chunks
  std::vector<std::array<std::optional<States>, kOrders>> states_;    // by sharding
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>, Compute> compute_;
  WorldWork work_;
};

}  // namespace trireme
