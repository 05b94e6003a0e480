// trireme plan --search, --sweep, --largest: layouts of a model on a cluster, all of them, in closed form.
#pragma once
#include <string>

#include "cli/plan_subject.h"
#include "plan/scaled_run.h"
#include "plan/search.h"

namespace trireme::cli {

struct SearchOptions {
  bool search = false, largest = false, why = false, fewer = false;
  std::string by = "step", software, svg, sweep, mix;
  std::string site, constants;  // also of RUN alone
  int64_t global = 0, best = 10, spares = -1, confirm = 3;
  double loss = 0, restart_s = 600, repair_h = 24, memory_share = 1;
  std::vector<std::string> flip;
  CLI::Option *confirmed = nullptr, *flips = nullptr;
  std::vector<CLI::Option*> shared;  // of no use without one of the three
  void add_to(CLI::App& verb);
  // Refuses the shared ones where none of the three is asked for.
  bool any() const;
  // --software, --site and --constants.
  PricedBy priced_by(std::string device) const;
};

// Makes the request of the options for the subject's model, or for `run`, which gets the cluster's device.
// price: of a device-hour, 0 = the cluster file's.
SearchRequest search_request(const SearchOptions&, const PlanSubject&, std::optional<RunSpec>& run,
                             double price);

void plan_search(const SearchOptions&, const PlanSubject&, const RunRequest&, double price);

}  // namespace trireme::cli
