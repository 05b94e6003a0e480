#include "plan/remedies.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/progress.h"
#include "plan/own_schedule.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"

namespace trireme {
namespace {

struct Change {
  std::string text;
  RunSpec run;
};
using Family = std::vector<Change>;  // of one kind, the cheapest first as a rule

void recompute_more(const RunSpec& run, Family& out) {
  const std::string& now = run.layout.recompute;
  for (const std::string_view more : {"selective", "full"}) {
    if (now == "full" || now == more) continue;
    Change c{fmt::format("layout.recompute = \"{}\"", more), run};
    c.run.layout.recompute = more;
    out.push_back(std::move(c));
  }
}

void shard_more(const RunSpec& run, Family& out) {
  if (replicas_of(run.layout) == 1) return;
  for (int64_t zero = effective_zero(run.layout) + 1; zero <= 3; zero++) {
    Change c{fmt::format("layout.zero = {}", zero), run};
    c.run.layout.zero = zero;
    out.push_back(std::move(c));
  }
}

// The largest that divides the batch and is at most half of the one before it.
void smaller_microbatches(const RunSpec& run, Family& out) {
  const int64_t replica = run.batch.global / run.layout.dp;
  int64_t before = run.batch.micro;
  for (int64_t micro = before / 2; micro >= 1; micro--) {
    if (replica % micro != 0 || micro > before / 2) continue;
    Change c{fmt::format("batch.micro = {}", micro), run};
    c.run.batch.micro = before = micro;
    out.push_back(std::move(c));
  }
}

void offload_more(const RunSpec& run, Family& out) {
  for (const std::string_view more : {"inputs", "state", "all"}) {
    if (run.layout.offload == more || run.layout.offload == "all") continue;
    if (run.layout.offload != "none" && more != "all") continue;
    Change c{fmt::format("layout.offload = \"{}\"", more), run};
    c.run.layout.offload = more;
    out.push_back(std::move(c));
  }
}

void divide_more(const RunSpec& run, int64_t LayoutSpec::*axis, const char* name, Family& out) {
  const LayoutSpec& l = run.layout;
  if (l.dp % 2 != 0) return;
  Change c{fmt::format("layout.{} = {} with layout.dp = {}", name, 2 * (l.*axis), l.dp / 2), run};
  c.run.layout.*axis *= 2, c.run.layout.dp /= 2;
  out.push_back(std::move(c));
}

std::vector<Family> families_of(const RunSpec& run) {
  std::vector<Family> all(6);
  recompute_more(run, all[0]);
  shard_more(run, all[1]);
  smaller_microbatches(run, all[2]);
  offload_more(run, all[3]);
  divide_more(run, &LayoutSpec::tp, "tp", all[4]);
  divide_more(run, &LayoutSpec::pp, "pp", all[5]);
  return all;
}

// As train would prepare it. Nothing: it cannot be.
std::optional<Forecast> changed_forecast(RunSpec run, const ClusterSpec& cluster, int threads) {
  try {
    if (!problems_of(run).empty() || !unsupported_of(run).empty()) return std::nullopt;
    run = resolve(run, {.native_bf16 = run.precision.compute == "bf16"});
    run.own_schedule = {};
    find_own_schedule(run, cluster);
    return forecast(run, schedule_of(run), cluster, threads);
  } catch (const Error& e) {
    if (e.fault != Fault::request) throw;
    return std::nullopt;
  }
}

Remedy remedy_of(const Change& c, const Forecast& before, const Forecast& after) {
  Remedy r{.change = c.text, .saves = before.device_bytes() - after.device_bytes(), .step_s = after.step_s};
  if (before.step_s > 0) r.costs = after.step_s / before.step_s - 1;
  r.priced = after.step_s > 0 && after.disk_priced && after.wire_priced;
  return r;
}

bool cheaper(const Remedy& a, const Remedy& b) {
  if (a.priced != b.priced) return a.priced;
  return a.step_s != b.step_s ? a.step_s < b.step_s : a.saves > b.saves;
}

}  // namespace

std::string to_text(const Remedy& r) {
  const std::string saves = fmt::format("{} {} {} a rank", r.change, r.saves < 0 ? "takes another" : "saves",
                                        human_bytes(std::abs(r.saves)));
  if (r.step_s == 0) return saves + ", in a time that is not known";
  const char* unpriced = r.priced ? "" : ", and what it moves takes time that is not known";
  if (std::abs(r.costs) < 5e-4) return fmt::format("{} at the same step time{}", saves, unpriced);
  return fmt::format("{} and {} {:.1f} % of the step's time{}", saves, r.costs < 0 ? "spares" : "costs",
                     100 * std::abs(r.costs), unpriced);
}

void find_remedies(Forecast& f, const RunSpec& run, const PrecisionSpec& asked, const ClusterSpec& cluster,
                   int threads) {
  if (f.fits) return;
  RunSpec from = run;
  from.precision = asked, from.precision.compute = run.precision.compute;
  Remedies all;
  for (const Family& family : families_of(from))
    for (const Change& c : family) {
      const std::optional<Forecast> after = changed_forecast(c.run, cluster, threads);
      if (!after) continue;
      all.tried++;
      Remedy r = remedy_of(c, f, *after);
      if (!after->fits) {
        if (!all.leanest || r.saves > all.leanest->saves) all.leanest = std::move(r);
        continue;
      }
      all.found.push_back(std::move(r));
      break;
    }
  if (!all.found.empty()) all.leanest.reset();
  std::stable_sort(all.found.begin(), all.found.end(), cheaper);
  f.remedies = std::move(all);
}

}  // namespace trireme
