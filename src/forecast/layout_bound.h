// The bound of a layout's step, on devices of one kind or of several (catalog/device_kinds.h).
#pragma once
#include <map>
#include <vector>

#include "catalog/device_kinds.h"
#include "forecast/bound_step.h"

namespace trireme {

// As BoundStep. All layouts are priced by the same figures.
class LayoutBound {
 public:
  // kinds: null for devices of one kind. Both outlive it, as the others do.
  LayoutBound(const DeviceFigures& figures, const FitValues& fits, const LayoutSpec& keys,
              const DeviceKinds* kinds)
      : figures_(figures), fits_(fits), keys_(keys), kinds_(kinds) {}

  void clear();
  StepSeconds of(StepBound&, std::string_view schedule, const StepCase&, size_t kind, size_t sharding,
                 bool exact = false);
  double least(StepBound&, std::string_view schedule, const StepCase&, size_t kind);
  double sharded(StepBound&, std::string_view schedule, const StepCase&, size_t kind, size_t sharding);

 private:
  // The case on each kind of the layout's devices, put together.
  template <class One>
  BoundCase joined(const StepCase&, const One& one);

  const DeviceFigures& figures_;
  const FitValues& fits_;
  const LayoutSpec& keys_;
  const DeviceKinds* kinds_;
  BoundStep plain_;
  std::map<int64_t, BoundStep> on_;  // by number of DeviceKinds
  std::vector<const WorldWork*> works_;
};

}  // namespace trireme
