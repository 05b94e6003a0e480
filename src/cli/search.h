// trireme search: layouts of a model on a cluster, all of them, priced in closed form; the best replayed.
#pragma once
#include <string>

#include "cli/plan_subject.h"
#include "forecast/scaled_run.h"
#include "search/search.h"

namespace trireme::cli {

struct SearchOptions {
  bool largest = false, why = false, fewer = false, all = false, json = false;
  std::string by = "step", software, svg, sweep, mix, as, out;
  std::string site, constants;
  std::vector<std::string> require;
  int64_t global = 0, best = 10, spares = -1, confirm = 3;
  double loss = 0, restart_s = 600, repair_h = 24, memory_share = 1, price = 0;
  std::vector<std::string> flip;
  CLI::Option *confirmed = nullptr, *flips = nullptr;
  CLI::Option* listed = nullptr;  // --best
  void add_to(CLI::App& verb);
  bool layouts() const { return !largest && sweep.empty(); }  // neither --sweep nor --largest
  // Rejects options that the requested answer does not read.
  void reject_unread() const;
  PricedBy priced_by(std::string device) const;
};

// Makes the request of the options for the subject's model, or for `run`, which gets the cluster's device.
SearchRequest search_request(const SearchOptions&, const PlanSubject&, std::optional<RunSpec>& run);

// The values of --software, --site and --constants as a choice of measured constants.
PricedBy priced_by(std::string device, const std::string& software, const std::string& site,
                   const std::string& constants);

}  // namespace trireme::cli
