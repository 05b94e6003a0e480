#include "report/difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/progress.h"

namespace trireme {
namespace {

using nlohmann::json;

constexpr size_t kNamedOps = 6;  // others are one term

bool updates(std::string_view op) {
  return op == "adamw" || op == "square_sums" || op == "orthogonalise" || op.starts_with("muon");
}

// Seconds of a step by op as forecast.
std::map<std::string, double> forecast_ops(const RunRecord& r, const char* key = "seconds") {
  std::map<std::string, double> out;
  if (!r.forecast.is_object() || !r.forecast.contains("ops") || !r.forecast["ops"].is_array()) return out;
  for (const json& op : r.forecast["ops"]) {
    if (!op.is_object() || !op.contains("op") || !op["op"].is_string()) continue;
    const auto it = op.find(key);
    if (it != op.end() && it->is_number()) out[op["op"].get<std::string>()] += it->get<double>();
  }
  return out;
}

// Seconds of a step and rank by op as traced.
std::map<std::string, double> traced_ops(const TraceFacts& t) {
  std::map<std::string, double> out;
  for (const TracedOp& o : t.ops) out[o.name] += o.seconds / std::max(1.0, t.rank_steps());
  return out;
}

// The last term is what the named ones leave of the difference.
void close(Difference& d, std::string name) {
  if (!d.both()) return d.terms.clear();
  double left = d.measured - d.forecast;
  for (const Term& t : d.terms) left -= t.value;
  d.terms.push_back({std::move(name), left});
}

void add_op_terms(Difference& d, const RunRecord& r, const TraceFacts& t) {
  const auto forecast = forecast_ops(r), measured = traced_ops(t);
  std::set<std::string> names;
  for (const auto& [name, s] : forecast) names.insert(name);
  for (const auto& [name, s] : measured) names.insert(name);
  std::vector<Term> all;
  for (const std::string& name : names) {
    const auto f = forecast.find(name), m = measured.find(name);
    all.push_back({name, (m == measured.end() ? 0 : m->second) - (f == forecast.end() ? 0 : f->second)});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Term& a, const Term& b) { return std::abs(a.value) > std::abs(b.value); });
  double rest = 0;
  for (size_t i = 0; i < all.size(); i++) {
    if (i < kNamedOps)
      d.terms.push_back(
          {fmt::format("{} {} than forecast", all[i].name, all[i].value >= 0 ? "slower" : "faster"),
           all[i].value});
    else
      rest += all[i].value;
  }
  if (all.size() > kNamedOps) d.terms.push_back({"other ops", rest});
}

// From the comb: mean over ranks of each use, against what was forecast of it.
void add_traced_terms(Difference& d, const RunRecord& r, const TraceFacts& t) {
  add_op_terms(d, r, t);
  double comm = 0;
  for (Use u : {Use::pp, Use::tp, Use::cp, Use::ep, Use::dp, Use::peers, Use::agree}) comm += t.per_step(u);
  const double bubble = t.per_step(Use::bubble);
  const double forecast_exposed = r.forecast_number("exposed_comm_s");
  const double exposed = known(forecast_exposed) ? forecast_exposed : 0;
  const double share = r.forecast_number("bubble");
  const double forecast_bubble =
      known(share) && r.run && r.run->layout.pp > 1 ? std::min(exposed, share * d.forecast) : 0;
  if (comm > 0 || exposed > 0)
    d.terms.push_back({"exposed communication", comm - (exposed - forecast_bubble)});
  if (bubble > 0 || forecast_bubble > 0) d.terms.push_back({"pipeline bubble", bubble - forecast_bubble});
  d.terms.push_back({"waiting for input data", t.per_step(Use::data)});
  d.terms.push_back({"host time between ops", t.per_step(Use::launch)});
  if (const double pauses = t.per_step(Use::unknown); pauses > 0)
    d.terms.push_back({"pauses that no span explains", pauses});
  d.terms.push_back({d.measured < t.step_s() ? "traced steps were slower than the median step"
                                             : "traced steps were faster than the median step",
                     d.measured - t.step_s()});
}

// From metrics.jsonl: the parts that the step loop times.
void add_metrics_terms(Difference& d, const RunRecord& r, const std::vector<const StepLine*>& steps) {
  double update = 0, passes = 0;
  for (const auto& [name, s] : forecast_ops(r)) (updates(name) ? update : passes) += s;
  const auto part = [&](double StepLine::*number) {
    const double v = median_of(steps, number);
    return known(v) ? v : 0;
  };
  const double comm = part(&StepLine::comm_s), exposed = r.forecast_number("exposed_comm_s");
  if (known(exposed) && (comm > 0 || exposed > 0))
    d.terms.push_back({"exposed communication", comm - exposed});
  if (passes > 0 && known(median_of(steps, &StepLine::forward_s)) && comm == 0) {
    const double spent = part(&StepLine::forward_s) + part(&StepLine::backward_s);
    d.terms.push_back(
        {fmt::format("forward and backward {} than forecast", spent >= passes ? "slower" : "faster"),
         spent - passes});
    const double ends = part(&StepLine::norm_s) + part(&StepLine::update_s);
    d.terms.push_back({fmt::format("norm and update {} than forecast", ends >= update ? "slower" : "faster"),
                       ends - update});
  }
  d.terms.push_back({"waiting for input data", part(&StepLine::data_s)});
}

Difference state_bytes(const RunRecord& r, const char* const* buckets, size_t count) {
  Difference d;
  if (r.forecast.is_object() && r.forecast.contains("memory") && r.forecast["memory"].is_object()) {
    d.forecast = 0;
    for (size_t i = 0; i < count; i++) {
      const auto it = r.forecast["memory"].find(buckets[i]);
      if (it != r.forecast["memory"].end() && it->is_number()) d.forecast += it->get<double>();
    }
  }
  if (r.steps.empty() || r.steps.back().peak_total == 0) return d;
  d.measured = 0;
  for (size_t i = 0; i < count; i++) {
    const size_t b =
        size_t(std::find(kBucketNames.begin(), kBucketNames.end(), buckets[i]) - kBucketNames.begin());
    int64_t most = 0;
    for (const StepLine& s : r.steps) most = std::max(most, s.peak[b]);
    d.measured += double(most);
    if (!known(d.forecast)) continue;
    const auto it = r.forecast["memory"].find(buckets[i]);
    const double f = it != r.forecast["memory"].end() && it->is_number() ? it->get<double>() : 0;
    d.terms.push_back({buckets[i], double(most) - f});
  }
  close(d, "other");
  return d;
}

Difference cable(const RunRecord& r, const TraceFacts& t, const std::vector<const StepLine*>& steps) {
  Difference d;
  if (r.run && r.run->world() == 1) {
    d.forecast = d.measured = 0;
    d.note = "one rank: nothing is sent";
    return d;
  }
  // The forecast counts waits for another stage as exposed; they are the bubble's.
  d.forecast = r.forecast_number("exposed_comm_s");
  const double share = r.forecast_number("bubble"), step = r.forecast_number("step_s");
  if (r.run && r.run->layout.pp > 1 && known(share) && known(step))
    d.forecast = std::max(0.0, d.forecast - share * step);
  if (t.any()) {
    d.measured = 0;
    for (Use u : {Use::tp, Use::cp, Use::ep, Use::dp, Use::pp, Use::peers, Use::agree}) {
      const double s = t.per_step(u);
      d.measured += s;
      if (s > 0)
        d.terms.push_back({u == Use::peers   ? "waiting for slower ranks"
                           : u == Use::agree ? "agreement of all ranks on the norm"
                                             : fmt::format("{} data in flight", name_of(u)),
                           s});
    }
    if (known(d.forecast) && d.forecast != 0) d.terms.push_back({"forecast of all of them", -d.forecast});
  } else {
    d.measured = median_of(steps, &StepLine::comm_s);
  }
  close(d, "not explained");
  int64_t wire = 0;
  for (const auto& [name, bytes] :
       r.steps.empty() ? decltype(StepLine::comm_bytes)() : r.steps.back().comm_bytes)
    wire += bytes;
  if (wire > 0) d.note = fmt::format("{} per step on the wire of the rank with the most", human_bytes(wire));
  return d;
}

Difference bubble(const RunRecord& r, const TraceFacts& t) {
  Difference d;
  if (r.run && r.run->layout.pp == 1) {
    d.forecast = d.measured = 0;
    d.note = "one pipeline stage: no bubble";
    return d;
  }
  const double share = r.forecast_number("bubble"), step = r.forecast_number("step_s");
  if (known(share) && known(step)) d.forecast = share * step;
  if (t.any()) {
    d.measured = t.per_step(Use::bubble);
    close(d, d.measured >= d.forecast ? "stages wait longer for one another than forecast"
                                      : "stages wait less for one another than forecast");
  } else {
    d.note = t.why_not;
  }
  return d;
}

// Seconds of a step in ops that the memory's bandwidth bounds: more bytes per FLOP than the ridge allows.
Difference last_inch(const RunRecord& r, const TraceFacts& t) {
  Difference d;
  std::set<std::string> bound;
  if (r.forecast.is_object() && r.forecast.contains("ops") && r.forecast["ops"].is_array())
    for (const json& op : r.forecast["ops"]) {
      if (!op.is_object() || !op.contains("op") || !op["op"].is_string()) continue;
      const std::string name = op["op"].get<std::string>();
      if (name != "matmul" && !name.starts_with("attention") && name != "orthogonalise") bound.insert(name);
    }
  if (bound.empty()) return d;
  d.forecast = 0;
  const auto forecast = forecast_ops(r), measured = traced_ops(t);
  for (const std::string& name : bound) d.forecast += forecast.contains(name) ? forecast.at(name) : 0;
  d.note = "seconds in ops that move bytes rather than multiply";
  if (!t.any()) {
    d.note += "; " + t.why_not;
    return d;
  }
  d.measured = 0;
  std::vector<Term> terms;
  for (const std::string& name : bound) {
    const double m = measured.contains(name) ? measured.at(name) : 0;
    d.measured += m;
    terms.push_back({name, m - (forecast.contains(name) ? forecast.at(name) : 0)});
  }
  std::stable_sort(terms.begin(), terms.end(),
                   [](const Term& a, const Term& b) { return std::abs(a.value) > std::abs(b.value); });
  if (terms.size() > kNamedOps) terms.resize(kNamedOps);
  d.terms = std::move(terms);
  close(d, "other ops");
  return d;
}

}  // namespace

Difference step_difference(const RunRecord& r, const TraceFacts& t) {
  Difference d;
  const std::vector<const StepLine*> steps = r.timed();
  d.forecast = r.forecast_number("step_s");
  if (known(d.forecast) && d.forecast <= 0) d.forecast = kNoNumber;
  d.measured = median_of(steps, &StepLine::step_s);
  if (!d.both()) return d;
  if (t.any())
    add_traced_terms(d, r, t);
  else
    add_metrics_terms(d, r, steps);
  close(d, "not explained");
  return d;
}

std::vector<Toll> tolls_of(const RunRecord& r, const TraceFacts& t) {
  static constexpr const char* kState[] = {"weights", "grads", "optimizer"};
  static constexpr const char* kScratch[] = {"activations", "comm", "scratch"};
  const std::vector<const StepLine*> steps = r.timed();
  return {{"state shelf", "bytes", state_bytes(r, kState, 3)},
          {"scratchpad", "bytes", state_bytes(r, kScratch, 3)},
          {"cable", "s", cable(r, t, steps)},
          {"bubble", "s", bubble(r, t)},
          {"last inch", "s", last_inch(r, t)}};
}

}  // namespace trireme
