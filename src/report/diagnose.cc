#include "report/diagnose.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {

std::optional<double> Symptoms::priced_gain(std::vector<std::string> sets) const {
  if (!in.price || base.step_s <= 0) return std::nullopt;
  const std::optional<PricedRun> changed = in.price(sets);
  if (!changed || !changed->fits || changed->step_s <= 0) return std::nullopt;
  return 1 - changed->step_s / base.step_s;
}

std::optional<double> Symptoms::priced_hiding(std::vector<std::string> sets) const {
  if (!in.price || base.step_s <= 0 || base.exposed_s <= 0) return std::nullopt;
  const std::optional<PricedRun> changed = in.price(sets);
  if (changed && !changed->fits) return 0.0;
  if (!changed || changed->step_s <= 0) return std::nullopt;
  return std::max(0.0, 1 - changed->exposed_s / base.exposed_s);
}

double Symptoms::share(Use u) const {
  if (!in.trace.any()) return 0;
  const double step = in.trace.step_s();
  return step > 0 ? in.trace.per_step(u) / step : 0;
}

namespace {

// A trial of the change (`report --try`) says more than its plan.
void take_tried(Diagnosis& d, const RunRecord& r) {
  if (!d.found || d.key.empty()) return;
  for (const RunEvent& e : r.events) {
    const auto set = e.all.find("set"), gain = e.all.find("measured");
    if (e.kind != "tried" || set == e.all.end() || *set != d.key + "=" + d.to || gain == e.all.end() ||
        !gain->is_number())
      continue;
    d.gain_share = std::clamp(gain->get<double>(), 0.0, 1.0);
    d.measured = true;
    d.found = d.gain_share >= kLeastGain;
    d.evidence.push_back(fmt::format("tried: {:.1f} % less time per step", 100 * gain->get<double>()));
    if (!d.found) d.number += fmt::format("; tried, and {} = {} does not help", d.key, d.to);
  }
}

}  // namespace

std::vector<Diagnosis> diagnose(const ReportInput& in) {
  if (!in.record.run) return {};
  Symptoms s{.in = in, .run = *in.record.run, .steps = in.record.timed(), .base = {}};
  s.step_s = s.median(&StepLine::step_s);
  if (!known(s.step_s) || s.step_s <= 0) return {};
  if (in.price)
    if (const std::optional<PricedRun> base = in.price({})) s.base = *base;
  std::vector<Diagnosis> all;
  for (Diagnosis (*one)(const Symptoms&) :
       {serialised_communication, microbatch_too_small, pipeline_bubble, input_stall,
        checkpoints_too_frequent, needless_recompute, straggler, wrong_placement, clock_throttling,
        launch_overhead, slow_storage, busy_machine})
    all.push_back(one(s));
  for (Diagnosis& d : all) take_tried(d, in.record);
  std::stable_sort(all.begin(), all.end(), [](const Diagnosis& a, const Diagnosis& b) {
    if (a.found != b.found) return a.found;
    if (!a.found) return false;
    if (a.key.empty() != b.key.empty()) return b.key.empty();  // a key can be changed now
    return a.gain_share > b.gain_share;
  });
  return all;
}

}  // namespace trireme
