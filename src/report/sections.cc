#include "report/sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/counted.h"
#include "base/progress.h"

namespace trireme {

std::string shown_name(Use u, const UseTimes& totals) {
  return u == Use::input && totals[size_t(Use::weight)] == 0 ? "backward" : std::string(name_of(u));
}

namespace {

using nlohmann::json;

constexpr int kBins = 240;
constexpr size_t kMostRows = 64;      // ranks that the comb shows
constexpr size_t kMostPoints = 1000;  // per curve
constexpr size_t kMostOps = 40;

json pauses_json(const TracedRank& r, const UseTimes& totals) {
  json out = json::array();
  for (const LongPause& p : r.pauses)
    out.push_back({{"begin_s", double(p.begin) * 1e-9},
                   {"end_s", double(p.end) * 1e-9},
                   {"cause", shown_name(p.use, totals)},
                   {"what", p.what},
                   {"microbatch", p.microbatch >= 0 ? json(p.microbatch) : json(nullptr)}});
  return out;
}

}  // namespace

json number_or_null(double v) {
  return std::isfinite(v) ? json(v) : json(nullptr);
}

std::string amount_text(double v, const std::string& unit) {
  return unit == "bytes" ? human_bytes(int64_t(v)) : human_seconds(v);
}

json comb_json(const TraceFacts& t) {
  if (!t.any())
    return {{"why_not", t.why_not},
            {"steps", json::array()},
            {"rows", json::array()},
            {"causes", json::array()},
            {"work", json::array()}};
  const UseTimes totals = t.totals();
  std::vector<Use> uses;
  for (size_t u = 0; u < kUses; u++)
    if (totals[u] > 0) uses.push_back(Use(u));
  json j = {{"steps", json::array()},
            {"span_s", double(t.comb.makespan) * 1e-9},
            {"bins", kBins},
            {"why_not", nullptr}};
  for (const TracedStep& s : t.steps) j["steps"].push_back(s.step);
  j["causes"] = json::array();
  j["work"] = json::array();
  j["rows"] = json::array();
  for (Use u : uses) {
    j["causes"].push_back(shown_name(u, totals));
    if (is_work(u)) j["work"].push_back(shown_name(u, totals));
  }
  const double all = double(t.comb.makespan) * double(t.comb.rows.size());
  double sum = 0;
  for (Use u : uses) {
    const double share = double(totals[size_t(u)]) / all;
    j["totals"][shown_name(u, totals)] = share;
    sum += share;
  }
  j["sum"] = sum;
  for (size_t i = 0; i < t.comb.rows.size() && i < kMostRows; i++) {
    const CombRow& row = t.comb.rows[i];
    const UseTimes mine = use_of(row.stretches);
    json one = {{"name", row.name}, {"shares", json::array()}, {"gaps", pauses_json(t.ranks[i], totals)}};
    int64_t work = 0;
    for (Use u : uses) {
      one["totals"][shown_name(u, totals)] = double(mine[size_t(u)]) / double(t.comb.makespan);
      work += is_work(u) ? mine[size_t(u)] : 0;
    }
    one["utilisation"] = double(work) / double(t.comb.makespan);
    for (const UseTimes& bin : bins_of(row, t.comb.makespan, kBins)) {
      int64_t length = 0;
      for (int64_t x : bin) length += x;
      json shares = json::array();
      for (Use u : uses)
        shares.push_back(length > 0 ? std::round(1e4 * double(bin[size_t(u)]) / double(length)) / 1e4 : 0);
      one["shares"].push_back(shares);
    }
    j["rows"].push_back(one);
  }
  if (t.damaged > 0) j["note"] = fmt::format("{} of the trace not read", counted(t.damaged, "line"));
  return j;
}

json memory_json(const ReportInput& in, const MachineFacts& m) {
  const RunRecord& r = in.record;
  json j = {{"buckets", kBucketNames}, {"capacity", m.memory > 0 ? json(m.memory) : json(nullptr)}};
  j["forecast_peak"] = json::object();
  j["measured_peak"] = json::object();
  j["over_time"] = json::array();
  j["arena"] = nullptr;
  if (r.forecast.is_object() && r.forecast.contains("memory") && r.forecast["memory"].is_object()) {
    for (std::string_view b : kBucketNames)
      if (r.forecast["memory"].contains(std::string(b)))
        j["forecast_peak"][std::string(b)] = r.forecast["memory"][std::string(b)];
    if (r.forecast["memory"].contains("arena")) j["arena"] = r.forecast["memory"]["arena"];
  }
  if (!r.steps.empty() && r.steps.back().peak_total > 0)
    for (size_t b = 0; b < kBuckets; b++) {
      int64_t most = 0;
      for (const StepLine& s : r.steps) most = std::max(most, s.peak[b]);
      j["measured_peak"][std::string(kBucketNames[b])] = most;
    }
  for (size_t i = 0; i < in.trace.ranks.size() && i < kMostRows; i++) {
    const TracedRank& rank = in.trace.ranks[i];
    json one = {{"rank", rank.rank}, {"t_s", json::array()}, {"bytes", json::object()}};
    for (std::string_view b : kBucketNames) one["bytes"][std::string(b)] = json::array();
    for (const MemorySample& s : rank.memory) {
      one["t_s"].push_back(double(s.at) * 1e-9);
      for (size_t b = 0; b < kBuckets; b++) one["bytes"][std::string(kBucketNames[b])].push_back(s.bytes[b]);
    }
    j["over_time"].push_back(one);
  }
  j["why_not"] = in.trace.any() ? json(nullptr) : json(in.trace.why_not);
  return j;
}

json curves_json(const RunRecord& r) {
  const size_t every = (r.steps.size() + kMostPoints - 1) / std::max<size_t>(1, kMostPoints);
  json j = {{"eval", json::array()}, {"time", json::object()}};
  struct Curve {
    const char* name;
    double StepLine::*number;
  };
  static constexpr Curve kCurves[] = {{"loss", &StepLine::loss},
                                      {"tokens_per_s", &StepLine::tokens_per_s},
                                      {"mfu", &StepLine::mfu},
                                      {"hfu", &StepLine::hfu},
                                      {"grad_norm", &StepLine::grad_norm},
                                      {"lr", &StepLine::lr},
                                      {"step_s", &StepLine::step_s},
                                      {"data_s", &StepLine::data_s},
                                      {"comm_s", &StepLine::comm_s}};
  static constexpr Curve kParts[] = {{"forward", &StepLine::forward_s},
                                     {"backward", &StepLine::backward_s},
                                     {"update", &StepLine::update_s},
                                     {"norm", &StepLine::norm_s},
                                     {"other", &StepLine::other_s}};
  for (const Curve& c : kCurves) j[c.name] = json::array();
  for (const Curve& c : kParts) j["time"][c.name] = json::array();
  j["step"] = json::array();
  j["tokens"] = json::array();
  int64_t tokens = 0;
  for (size_t i = 0; i < r.steps.size(); i++) {
    const StepLine& s = r.steps[i];
    tokens += s.tokens;
    if (known(s.eval_loss)) j["eval"].push_back({s.step, s.eval_loss});
    for (const auto& [name, score] : s.tasks) j["tasks"][name].push_back({s.step, score});
    if (every > 1 && i % every != 0 && i + 1 != r.steps.size()) continue;
    j["step"].push_back(s.step), j["tokens"].push_back(tokens);
    for (const Curve& c : kCurves) j[c.name].push_back(number_or_null(s.*c.number));
    for (const Curve& c : kParts) j["time"][c.name].push_back(number_or_null(s.*c.number));
  }
  j["thinned"] = every > 1 ? json(fmt::format("every {} of {} steps",
                                              every == 2   ? "2nd"
                                              : every == 3 ? "3rd"
                                                           : fmt::format("{}th", every),
                                              r.steps.size()))
                           : json(nullptr);
  return j;
}

// Least traffic of a step: weights are read in forward and backward of each microbatch. Gradients are written
// and read once, optimizer state read and written once, kept activations written once and read once.
json traffic_of(const ReportInput& in) {
  const RunRecord& r = in.record;
  double moved = 0;
  for (const TracedOp& o : in.trace.ops) moved += double(o.cost.bytes_read + o.cost.bytes_written);
  moved /= std::max(1.0, in.trace.rank_steps());
  std::string what = "bytes that the traced ops read and write, each operand once";
  if (!in.trace.any()) {
    const double read = r.forecast_number("bytes_read"), written = r.forecast_number("bytes_written");
    if (!known(read) || !known(written)) return nullptr;
    moved = read + written;
    what = "forecast: bytes that the ops read and write, each operand once";
  }
  if (!r.forecast.is_object() || !r.forecast.contains("at_peak") || !r.run) return nullptr;
  const json& peak = r.forecast["at_peak"];
  const auto bytes = [&](const char* bucket) {
    return peak.is_object() && peak.contains(bucket) && peak[bucket].is_number() ? peak[bucket].get<double>()
                                                                                 : 0;
  };
  const double micro = double(std::max<int64_t>(1, r.run->microbatches()));
  const double least = 2 * micro * bytes("weights") + 2 * bytes("grads") + 2 * bytes("optimizer") +
                       2 * micro * bytes("activations") /
                           double(std::max<int64_t>(1, std::min(r.run->layout.pp, r.run->microbatches())));
  return {{"measured_or_counted_bytes", moved},
          {"least_bytes", least},
          {"ratio", least > 0 ? json(moved / least) : json(nullptr)},
          {"what", what + "; least: weights read in forward and backward of each microbatch, gradients and "
                          "optimizer state read and written once, kept activations written and read once"}};
}

json roofline_json(const ReportInput& in, const MachineFacts& m) {
  json j = {{"peak_flops", m.peak_flops > 0 ? json(m.peak_flops) : json(nullptr)},
            {"bandwidth", m.bandwidth > 0 ? json(m.bandwidth) : json(nullptr)},
            {"network", m.network > 0 ? json(m.network) : json(nullptr)},
            {"device", m.device},
            {"ops", json::array()},
            {"traffic", traffic_of(in)},
            {"why_not", nullptr}};
  if (!in.trace.any()) j["why_not"] = in.trace.why_not;
  double all = 0;
  for (const TracedOp& o : in.trace.ops) all += o.seconds;
  for (size_t i = 0; i < in.trace.ops.size() && i < kMostOps; i++) {
    const TracedOp& o = in.trace.ops[i];
    const double bytes = double(o.cost.bytes_read + o.cost.bytes_written);
    const double intensity = bytes > 0 ? o.cost.flops / bytes : 0;
    json one = {{"name", o.name},         {"layer", o.layer},
                {"calls", o.calls},       {"flops", o.cost.flops},
                {"bytes", bytes},         {"seconds", o.seconds},
                {"intensity", intensity}, {"share", all > 0 ? o.seconds / all : 0}};
    one["flops_per_s"] = o.seconds > 0 ? json(o.cost.flops / o.seconds) : json(nullptr);
    one["bound"] = m.peak_flops > 0 && m.bandwidth > 0
                       ? json(intensity >= m.peak_flops / m.bandwidth ? "compute" : "memory")
                       : json(nullptr);
    j["ops"].push_back(one);
  }
  return j;
}

}  // namespace trireme
