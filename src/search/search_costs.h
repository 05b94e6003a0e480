// Energy, checkpoints and service of a searched layout: docs/costs.md.
#pragma once
#include <optional>
#include <string>

#include "base/json.h"
#include "estimate/serving.h"
#include "search/search.h"

namespace trireme {

struct SearchCosts {
  int64_t devices = 0;
  double watts = 0;  // 0 = the cluster states none
  double step_s = 0, step_tokens = 0;
  std::optional<CheckpointPlan> checkpoint;
  std::optional<Serving> serving;  // on at least the layout's tp devices
  std::string kinds;               // kinds_text()
};
SearchCosts costs_of(const SearchRequest&, const SearchLayout&, double step_s);

// Named lines: (name, text).
std::vector<std::pair<std::string, std::string>> cost_lines(const SearchRequest&, const SearchCosts&);
// Sets price, watts, checkpoint and serving.
void add_costs(nlohmann::ordered_json&, const SearchRequest&, const SearchCosts&);

}  // namespace trireme
