#include "spec/check_recorded.h"

#include <fmt/format.h>

#include "spec/batch_ramp.h"
#include "spec/toml.h"
#include "trace/step_set.h"

namespace trireme {

void check_recorded_steps(const RunSpec& run, std::vector<Problem>& out) {
  for (const auto& [key, text] : {std::pair("train.trace_steps", &run.train.trace_steps),
                                  {"train.record_routing", &run.train.record_routing}}) {
    StepSet steps;
    if (std::string why = StepSet::parse(*text, steps); !why.empty())
      out.push_back({{key}, ": " + why});
    else if (!steps.empty() && steps.first() > run.train.steps)
      out.push_back({{key, "train.steps"},
                     fmt::format("are beyond train.steps = {}; give steps up to that", run.train.steps)});
    else if (text == &run.train.record_routing && !steps.empty() &&
             global_at(run.batch, steps.first()) < run.batch.global)
      out.push_back({{key, "batch.ramp"},
                     fmt::format("has steps of a smaller batch than batch.global = {}, which `trireme plan` "
                                 "books; give steps after {}",
                                 run.batch.global, run.batch.ramp.back().until)});
  }
  if (!run.train.record_routing.empty() && !run.model.moe())
    out.push_back({{"train.record_routing", "model.experts"},
                   "are of routers, and the model has none; give \"\", or model.experts above 0"});
}

}  // namespace trireme
