// trireme simulate RUN.toml, or --model and --layout: a run of any size, event by event.
#pragma once
#include "cli/cli.h"
#include "cli/disturbance.h"
#include "cli/known_routing_option.h"

namespace trireme::cli {

struct SimulateRunRequest {
  RunRequest run;
  std::string model, cluster, layout, software, site, constants;
  DisturbanceOptions disturbed;
  std::string fail, trace, memory_svg;
  KnownRoutingRequest routing;
  std::vector<int> trace_ranks;
  int columns = 100;
  double save_s = -1, restart_s = 600;  // -1: derived
  bool all_ranks = false, closed_form = false, by_op = false, share_links = false;
  std::string svg, html;                    // set by the verb, with run.json
  std::vector<const CLI::Option*> details;  // which say more of a run
  std::vector<const CLI::Option*> of_failure;
  // The options that it has beside the verb's own; returns those that ask for it.
  std::vector<CLI::Option*> add_to(CLI::App& verb);
  // Errors (request): options of a run, and no run.
  void refuse_alone() const;
  bool has_constants() const { return !site.empty() || !constants.empty(); }
  bool wanted() const { return !run.file.empty() || !model.empty(); }
};
void simulate_run(const SimulateRunRequest&);

}  // namespace trireme::cli
