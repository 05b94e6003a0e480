// A cluster of several kinds of devices: which kind each pipeline rank has, and what it is priced by.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "base/interned.h"
#include "catalog/cluster_device.h"
#include "catalog/priced_by.h"
#include "cost/step_time.h"
#include "spec/rank_kinds.h"
#include "spec/run_spec.h"

namespace trireme {

// The kinds that pipeline ranks have (spec/rank_kinds.h), as closed forms read them.
class DeviceKinds {
 public:
  struct Kind {
    std::string name;
    DeviceFigures figures;
    FitValues fits{};
    double host = 0, disk = 0;  // bytes/s to where optimizer state may wait
  };
  // devices: as device_of(). by: whose constants; its device is each kind's. Returns null for a cluster of
  // one kind. Throws bad_request if a kind lacks a figure; asked: the option, for errors.
  static std::shared_ptr<const DeviceKinds> of(const ClusterSpec&, int64_t devices, PricedBy by,
                                               std::string_view asked);

  // By number of kinds_of_ranks().
  const Kind& at(int64_t number) const { return kinds_.at(number); }
  int64_t numbers() const { return count_ * count_; }
  // The number of each pipeline rank; valid until the program ends.
  const NumberList* of_ranks(const LayoutSpec&) const;
  // The same kinds with other figures and constants.
  std::shared_ptr<const DeviceKinds> changed(const std::function<void(DeviceFigures&, FitValues&)>&) const;
  const ClusterSpec& cluster() const { return cluster_; }

 private:
  ClusterSpec cluster_;
  int64_t count_ = 0;
  std::map<int64_t, Kind> kinds_;
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, std::string>;
  mutable std::map<Key, const NumberList*> known_;
};

}  // namespace trireme
