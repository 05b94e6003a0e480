// Cuts of a model's layers into stages whose devices are of several kinds.
#pragma once
#include <map>
#include <vector>

#include "forecast/layout_case.h"

namespace trireme {

class KindCuts {
 public:
  explicit KindCuts(const LayoutCase&);
  // layout.stage_layers of pipelines of this schedule: null, which is the run's own cut, and others, in which
  // faster devices have more layers, or devices with more memory. Valid until the program ends.
  const std::vector<const NumberList*>& of(std::string_view schedule, int64_t chunks,
                                           const NumberList* devices);

 private:
  std::vector<const NumberList*> find(std::string_view schedule, int64_t chunks,
                                      const NumberList& devices) const;
  const LayoutCase& q_;
  std::map<int64_t, double> speeds_;  // blocks per second, by number of the kind
  std::map<std::tuple<std::string_view, int64_t, const NumberList*>, std::vector<const NumberList*>> known_;
};

// Layouts that are better than `from` by their bounds, and fit: layers are moved one by one from a stage to
// another, as long as that helps. from: has stages on several kinds of devices.
std::vector<Priced> moved_layers(const LayoutCase&, const Priced& from);

}  // namespace trireme
