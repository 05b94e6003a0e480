#include "report/price_plan.h"

#include "base/error.h"
#include "forecast/forecast.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"

namespace trireme {

std::optional<RunSpec> changed_plan(const fs::path& plan, std::span<const std::string> sets) try {
  const RunSpec run = resolve(load_run(plan, sets), {});  // a plan.toml has no "auto" that a device decides
  refuse_unsupported(run);
  return run;
} catch (const Error&) {
  return std::nullopt;
}

std::optional<PricedRun> price_plan(const RunSpec& run, const ClusterSpec& cluster, int threads) try {
  const Forecast f = forecast(run, schedule_of(run), cluster, threads);
  return PricedRun{
      .step_s = f.step_s, .exposed_s = f.time.exposed_s, .fits = f.fits, .device_bytes = f.device_bytes()};
} catch (const Error&) {
  return std::nullopt;
}

}  // namespace trireme
