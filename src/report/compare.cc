#include "report/compare.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/counted.h"
#include "base/progress.h"
#include "base/timed.h"
#include "report/sections.h"

namespace trireme {
namespace {

using nlohmann::json;

bool is_plan(const ReportInput& in) {
  return in.record.steps.empty();
}

std::string name_of_run(const ReportInput& in) {
  return in.record.folder.filename().string();
}

// Measured; if the input is a plan, forecast.
double value_of(const ReportInput& in, const Difference& d) {
  return is_plan(in) ? d.forecast : d.measured;
}

double step_of(const ReportInput& in) {
  return value_of(in, step_difference(in.record, in.trace));
}

double tokens_per_s(const ReportInput& in) {
  const double measured = median_of(in.record.timed(), &StepLine::tokens_per_s);
  if (known(measured)) return measured;
  const double per_device = in.record.forecast_number("tokens_per_s_per_gpu");
  return known(per_device) && in.record.run ? per_device * double(in.record.run->world()) : kNoNumber;
}

std::string seconds_text(double s) {
  return (s < 0 ? "-" : "+") + human_seconds(std::abs(s));
}

json tolls_of_all(std::span<const ReportInput> all, std::vector<std::string>& text) {
  std::vector<std::vector<Toll>> each;
  for (const ReportInput& in : all) each.push_back(tolls_of(in.record, in.trace));
  json out = json::array();
  for (size_t t = 0; t < each[0].size(); t++) {
    json values = json::array();
    std::vector<double> known_values;
    for (size_t i = 0; i < all.size(); i++) {
      const double v = value_of(all[i], each[i][t].difference);
      values.push_back(number_or_null(v));
      if (known(v)) known_values.push_back(v);
    }
    json row = {
        {"toll", each[0][t].name}, {"unit", each[0][t].unit}, {"values", values}, {"change", nullptr}};
    if (known_values.size() == all.size()) {
      const double a = known_values.front(), b = known_values.back();
      row["change"] = b - a;
      if (std::max(std::abs(a), std::abs(b)) > 0 && std::abs(b - a) > 0.02 * std::max(a, b))
        text.push_back(fmt::format("{}: {} from {} to {}{}", each[0][t].name, b > a ? "rose" : "fell",
                                   amount_text(a, each[0][t].unit), amount_text(b, each[0][t].unit),
                                   a > 0 ? fmt::format(" ({:+.0f} %)", 100 * (b / a - 1)) : ""));
    }
    out.push_back(row);
  }
  return out;
}

// Runs of one model and sequence length on several numbers of ranks.
json scaling_of(std::span<const ReportInput> all, std::vector<std::string>& text) {
  json out = json::array();
  std::vector<const ReportInput*> sorted;
  for (const ReportInput& in : all)
    if (in.record.run && known(tokens_per_s(in))) sorted.push_back(&in);
  if (sorted.size() != all.size()) return out;
  std::stable_sort(sorted.begin(), sorted.end(), [](const ReportInput* a, const ReportInput* b) {
    return a->record.run->world() < b->record.run->world();
  });
  const RunSpec& first = *sorted.front()->record.run;
  if (first.world() == sorted.back()->record.run->world()) return out;
  for (const ReportInput* in : sorted)
    if (!(in->record.run->model == first.model) || in->record.run->data.seq_len != first.data.seq_len)
      return out;
  const double base = tokens_per_s(*sorted.front());
  for (const ReportInput* in : sorted) {
    const double speed = tokens_per_s(*in), ideal = double(in->record.run->world()) / double(first.world());
    out.push_back({{"name", name_of_run(*in)},
                   {"devices", in->record.run->world()},
                   {"tokens_per_s", speed},
                   {"speedup", speed / base},
                   {"ideal", ideal},
                   {"efficiency", speed / base / ideal}});
  }
  const json& last = out.back();
  text.push_back(fmt::format("{} ranks are {:.2f} times as fast as {}; ideal is {:.2f} ({:.0f} % efficiency)",
                             sorted.back()->record.run->world(), last["speedup"].get<double>(), first.world(),
                             last["ideal"].get<double>(), 100 * last["efficiency"].get<double>()));
  return out;
}

// ---- two machines ----

struct Fact {
  std::string what;
  json value;
};

const json* at_path(const json& j, std::initializer_list<const char*> keys) {
  const json* at = &j;
  for (const char* key : keys) {
    if (!at->is_object()) return nullptr;
    const auto it = at->find(key);
    if (it == at->end()) return nullptr;
    at = &*it;
  }
  return at;
}

std::string shown(const json* v) {
  if (!v || v->is_null()) return "not recorded";
  if (v->is_string()) return v->get<std::string>().empty() ? "-" : v->get<std::string>();
  if (v->is_number_float()) return fmt::format("{:.4g}", v->get<double>());
  return v->dump(-1, ' ', false, json::error_handler_t::replace);
}

class Differences {
 public:
  Differences(const ReportInput& a, const ReportInput& b) : a_(a), b_(b) {
    for (const ReportInput* in : {&a, &b}) {
      const RunEvent* start = in->record.last_start();
      starts_[in == &b] = start ? start->all : json();
    }
    step_ = step_of(a);
  }

  json all() {
    add_hardware();
    add_storage();
    add_software();
    add_launch();
    rest();
    return std::move(rows_);
  }

 private:
  void add(const std::string& what, const std::string& a, const std::string& b, double cost,
           const std::string& note, bool of_step = true) {
    if (known(cost) && of_step) explained_ += cost;
    rows_.push_back({{"what", what},
                     {"a", a},
                     {"b", b},
                     {"cost_s", number_or_null(cost)},
                     {"cost_share", number_or_null(known(cost) && step_ > 0 ? cost / step_ : kNoNumber)},
                     {"note", note}});
  }
  // Adds a row if the two starts hold different values there.
  bool differs(const std::string& what, std::initializer_list<const char*> path, double cost = kNoNumber,
               const std::string& note = "") {
    const json *a = at_path(starts_[0], path), *b = at_path(starts_[1], path);
    if ((!a && !b) || (a && b && *a == *b)) return false;
    add(what, shown(a), shown(b), cost, note);
    return true;
  }
  double value(int side, std::initializer_list<const char*> path) const {
    const json* v = at_path(starts_[side], path);
    return v && v->is_number() ? v->get<double>() : 0;
  }
  double part(const ReportInput& in, std::initializer_list<double StepLine::*> parts) const {
    double sum = 0;
    for (double StepLine::*p : parts) {
      const double v = median_of(in.record.timed(), p);
      sum += known(v) ? v : 0;
    }
    return sum;
  }
  double change(std::initializer_list<double StepLine::*> parts) const {
    return part(b_, parts) - part(a_, parts);
  }

  // Computing time is proportional to the peak. The rest of its change belongs to threads, clock and
  // software.
  void add_hardware() {
    differs("processor", {"machine", "cpu"}, kNoNumber, "priced by the peak below");
    differs("cores", {"machine", "cores"});
    differs("memory", {"machine", "memory_bytes"});
    differs("huge pages", {"machine", "huge_pages"});
    differs("clock governor", {"machine", "governor"});
    const double computing =
        part(a_, {&StepLine::forward_s, &StepLine::backward_s, &StepLine::update_s, &StepLine::norm_s}) -
        part(a_, {&StepLine::comm_s});
    const double pa = value(0, {"cluster", "peak_flops"}), pb = value(1, {"cluster", "peak_flops"});
    if (pa > 0 && pb > 0 && std::abs(pb / pa - 1) > 0.02)
      differs("peak FLOP/s of a rank", {"cluster", "peak_flops"}, computing * (pa / pb - 1),
              "computing time in proportion to the peak");
    const double la = value(0, {"cluster", "link_bandwidth"}), lb = value(1, {"cluster", "link_bandwidth"});
    if (la > 0 && lb > 0 && std::abs(lb / la - 1) > 0.02)
      differs("link bandwidth", {"cluster", "link_bandwidth"}, change({&StepLine::comm_s}),
              "the measured change of exposed communication");
    const double clock[2] = {median_clock(a_.record), median_clock(b_.record)};
    if (clock[0] > 0 && clock[1] > 0 && std::abs(clock[1] / clock[0] - 1) > 0.03)
      add("clock under load (relative)", fmt::format("{:.3f}", clock[0]), fmt::format("{:.3f}", clock[1]),
          kNoNumber, "part of the peak's difference");
  }
  static double median_clock(const RunRecord& r) {
    std::vector<double> all;
    for (const RunEvent& e : r.events)
      if (const auto it = e.all.find("clock"); it != e.all.end() && it->is_number())
        all.push_back(it->get<double>());
    return median(std::move(all));
  }
  // Bytes per second of checkpoints, and what saves cost a step.
  void add_storage() {
    double speed[2], stall[2];
    for (int side : {0, 1}) {
      const RunRecord& r = (side ? b_ : a_).record;
      const SaveCosts costs = save_costs(r);
      speed[side] = costs.bytes_per_s(r.checkpoint_bytes);
      stall[side] = r.steps.empty() ? 0 : costs.stall_s / double(r.steps.size());
    }
    if (speed[0] > 0 && speed[1] > 0 && std::abs(speed[1] / speed[0] - 1) > 0.2)
      add("storage: checkpoint writes", human_bytes(int64_t(speed[0])) + "/s",
          human_bytes(int64_t(speed[1])) + "/s", stall[1] - stall[0],
          "change of checkpoint stalls per step, in addition to the step", false);
    const double data = change({&StepLine::data_s});
    if (std::abs(data) > 0.01 * step_)
      add("storage: input data", human_seconds(part(a_, {&StepLine::data_s})),
          human_seconds(part(b_, {&StepLine::data_s})), data, "change of the wait for input data per step");
  }
  void add_software() {
    const json* versions[2] = {at_path(starts_[0], {"versions"}), at_path(starts_[1], {"versions"})};
    std::vector<std::string> names;
    for (const json* v : versions)
      if (v && v->is_object())
        for (const auto& [name, version] : v->items())
          if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    for (const std::string& name : names)
      differs("software: " + name, {"versions", name.c_str()}, kNoNumber,
              "not priced by itself: see the rest");
    differs("kernel", {"machine", "kernel"});
  }
  void add_launch() {
    for (const char* key : {"bind", "comm", "device", "compute"})
      differs(std::string("launch: ") + key, {"launch", key});
    const double ta = value(0, {"launch", "threads"}), tb = value(1, {"launch", "threads"});
    if (ta > 0 && tb > 0 && ta != tb)
      differs("launch: threads per rank", {"launch", "threads"}, kNoNumber,
              "in the peak of a rank, if that was measured");
    const json* env[2] = {at_path(starts_[0], {"machine", "env"}), at_path(starts_[1], {"machine", "env"})};
    for (int side : {0, 1})
      if (env[side] && env[side]->is_object())
        for (const auto& [name, v] : env[side]->items())
          if (side == 0 || !env[0] || !env[0]->contains(name))
            differs("environment: " + name, {"machine", "env", name.c_str()});
    const double others[2] = {others_cpu(a_.record), others_cpu(b_.record)};
    if (std::abs(others[1] - others[0]) > 0.05)
      add("processors taken by other processes", fmt::format("{:.0f} %", 100 * others[0]),
          fmt::format("{:.0f} %", 100 * others[1]), kNoNumber, "measured during the run");
  }
  static double others_cpu(const RunRecord& r) {
    double sum = 0;
    int n = 0;
    for (const RunEvent& e : r.events)
      if (const auto it = e.all.find("others_cpu"); it != e.all.end() && it->is_number()) {
        sum += it->get<double>();
        n++;
      }
    return n > 0 ? sum / n : 0;
  }
  // The step's whole change, less what has a price above.
  void rest() {
    const double whole = step_of(b_) - step_of(a_);
    if (!known(whole)) return;
    add("the rest of the step's difference", human_seconds(step_of(a_)), human_seconds(step_of(b_)),
        whole - explained_, "settings, software, threads, and what no fact above explains");
  }

  const ReportInput &a_, &b_;
  json starts_[2];
  double step_ = 0, explained_ = 0;
  json rows_ = json::array();
};

// Keys of the run files that differ: rows like those of two machines, without a price.
void add_settings(std::span<const ReportInput> all, json& rows, std::vector<std::string>& text) {
  const ReportInput& first = all.front();
  for (const ReportInput& other : all.subspan(1)) {
    if (!first.record.run || !other.record.run) continue;
    std::vector<std::string> keys;
    for (const std::string& line : diff(*first.record.run, *other.record.run)) {
      const size_t colon = line.find(": "), arrow = line.find(" -> ");
      const std::string key = line.substr(0, colon);
      if (key == "train.dir" || key.starts_with("cluster.") || colon == line.npos || arrow == line.npos)
        continue;
      keys.push_back(line);
      rows.push_back({{"what", all.size() > 2 ? name_of_run(other) + ": " + key : "run file: " + key},
                      {"a", line.substr(colon + 2, arrow - colon - 2)},
                      {"b", line.substr(arrow + 4)},
                      {"cost_s", nullptr},
                      {"share", nullptr},
                      {"note", "set in the run file"}});
    }
    if (!keys.empty())
      text.push_back(fmt::format("set in {} and not in {}: {}", name_of_run(other), name_of_run(first),
                                 fmt::join(keys, "; ")));
  }
}

std::string times_text(double a, double b) {
  if (a <= 0 || b <= 0) return "";
  const auto times = [](double x) { return fmt::format("{:.{}f}", x, x < 10 ? 1 : 0); };
  if (b > 3 * a) return fmt::format(" ({} times as long)", times(b / a));
  if (a > 3 * b) return fmt::format(" ({} times as fast)", times(a / b));
  return fmt::format(" ({:+.1f} %)", 100 * (b / a - 1));
}

bool same_run(const ReportInput& a, const ReportInput& b) {
  return a.record.run && b.record.run && a.record.run->model == b.record.run->model &&
         a.record.run->batch.global == b.record.run->batch.global &&
         a.record.run->batch.ramp == b.record.run->batch.ramp &&
         a.record.run->data.seq_len == b.record.run->data.seq_len &&
         a.record.run->world() == b.record.run->world();
}

}  // namespace

json comparison_json(std::span<const ReportInput> all) {
  json j = {{"version", 1},           {"kind", "comparison"},    {"runs", json::array()},
            {"steps", json::array()}, {"curves", json::array()}, {"differences", json::array()}};
  std::vector<std::string> text;
  for (const ReportInput& in : all) {
    json one = report_json(in);
    j["runs"].push_back({{"name", name_of_run(in)},
                         {"folder", one["folder"]},
                         {"state", is_plan(in) ? json("plan") : one["state"]},
                         {"headline", one["headline"]}});
    j["steps"].push_back(one["step_time"]);
    j["curves"].push_back(one["curves"]);
  }
  const double a = step_of(all.front());
  std::string steps;
  for (const ReportInput& in : all)
    if (const double s = step_of(in); known(s))
      steps += steps.empty() ? fmt::format("a step of {} takes {}", name_of_run(in), human_seconds(s))
                             : fmt::format(", of {} {}{}", name_of_run(in), human_seconds(s),
                                           known(a) ? times_text(a, s) : "");
  if (!steps.empty()) text.push_back(steps);
  for (const ReportInput& in : all)
    if (is_plan(in) && in.bound)
      text.push_back(
          fmt::format("{}: a bound; the kernels of that device are not measured, and the time to "
                      "launch them does not count",
                      name_of_run(in)));
  j["tolls"] = tolls_of_all(all, text);
  j["scaling"] = scaling_of(all, text);
  add_settings(all, j["differences"], text);
  if (all.size() == 2 && !is_plan(all[0]) && !is_plan(all[1]) && same_run(all[0], all[1]) &&
      all[0].record.last_start() && all[1].record.last_start()) {
    const json facts = Differences(all[0], all[1]).all();
    j["differences"].insert(j["differences"].end(), facts.begin(), facts.end());
    for (const json& d : facts)
      if (d["cost_s"].is_number() && std::abs(d["cost_s"].get<double>()) > 0.01 * a)
        text.push_back(fmt::format("{}: {} against {}, {} per step", d["what"].get<std::string>(),
                                   d["a"].get<std::string>(), d["b"].get<std::string>(),
                                   seconds_text(d["cost_s"].get<double>())));
  }
  j["text"] = text;
  return j;
}

std::string compared_text(const json& c) {
  std::string out;
  for (const json& r : c["runs"])
    out += fmt::format("{} ({})\n", r["folder"].get<std::string>(), r["state"].get<std::string>());
  for (const json& line : c["text"]) out += "  " + line.get<std::string>() + "\n";
  out += "tolls        ";
  for (const json& r : c["runs"]) out += fmt::format(" {:>14}", r["name"].get<std::string>().substr(0, 14));
  out += "\n";
  for (const json& t : c["tolls"]) {
    out += fmt::format("  {:<11}", t["toll"].get<std::string>());
    for (const json& v : t["values"])
      out += fmt::format(" {:>14}",
                         v.is_number() ? amount_text(v.get<double>(), t["unit"].get<std::string>()) : "-");
    out += "\n";
  }
  for (const json& s : c["scaling"])
    out += fmt::format("  {:<20} {:>5} ranks {:>12} tokens/s  speed-up {:.2f} of {:.2f}\n",
                       s["name"].get<std::string>(), s["devices"].get<int64_t>(),
                       human_count(s["tokens_per_s"].get<double>()), s["speedup"].get<double>(),
                       s["ideal"].get<double>());
  if (!c["differences"].empty()) out += "what differs\n";
  for (const json& d : c["differences"])
    out += fmt::format("  {:<36} {:>22} {:>22} {}\n", d["what"].get<std::string>(),
                       d["a"].get<std::string>().substr(0, 22), d["b"].get<std::string>().substr(0, 22),
                       d["cost_s"].is_number() ? seconds_text(d["cost_s"].get<double>()) : std::string());
  return out;
}

}  // namespace trireme
