#include "cli/known_routing_option.h"

#include "cli/plan_subject.h"
#include "spec/known_routing.h"

namespace trireme::cli {

CLI::Option* KnownRoutingRequest::add_to(CLI::App& verb) {
  auto* const routing =
      verb.add_option("--routing", file, "books a recorded routing: routing.jsonl of train.record_routing");
  verb.add_option("--routing-step", step, "step of the recording (default: the last)")
      ->check(number_between(1, 1e15));
  return routing;
}

void KnownRoutingRequest::give_to(RunSpec& run) const {
  if (file.empty() && step > 0) bad_request("--routing-step: {}: it needs --routing", step);
  if (!file.empty()) set_known_routing(run, read_recorded_rows(file), step, file);
}

}  // namespace trireme::cli
