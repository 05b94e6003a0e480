// Laws as JSON: the result of a fit for programs, and the file between verbs.
#include <fmt/format.h>

#include <array>
#include <cmath>

#include "base/error.h"
#include "base/printable.h"
#include "checkpoint/json.h"
#include "scaling/fit_report.h"

namespace trireme {
namespace {

using Ordered = nlohmann::ordered_json;

constexpr size_t kMostLawBytes = size_t{64} << 20;

Ordered pair_of(const Interval& i) {
  return Ordered::array({i.low, i.high});
}

Ordered law_json(const ChinchillaLaw& l) {
  return {{"E", l.E}, {"A", l.A}, {"B", l.B}, {"alpha", l.alpha}, {"beta", l.beta}};
}

Ordered rate_json(const RateLaw& l) {
  if (!l.none.empty()) return {{"none", l.none}};
  Ordered j = {{"c", std::exp(l.log_c)}};
  if (l.knows_n) j["N"] = l.n;
  if (l.knows_n) j["N_interval"] = pair_of(l.n_interval);
  if (l.knows_d) j["D"] = l.d;
  if (l.knows_d) j["D_interval"] = pair_of(l.d_interval);
  j["cells"] = l.cells;
  return j;
}

Ordered frontier_json(const FrontierFit& f) {
  if (!f.none.empty()) return {{"none", f.none}};
  Ordered points = Ordered::array();
  for (const FrontierPoint& p : f.points)
    points.push_back({{"C", p.flops}, {"N", p.parameters}, {"loss", p.loss}});
  return {{"a", f.a}, {"interval", pair_of(f.interval)}, {"points", points}};
}

Ordered range_json(const FittedRange& r) {
  return {{"N", pair_of(r.parameters)}, {"D", pair_of(r.tokens)}, {"C", pair_of(r.flops)}};
}

void add_samples(Ordered& j, const FitReport& r) {
  if (r.task)
    j["task"] = {{"E", r.task->E},       {"A", r.task->A}, {"B", r.task->B},         {"alpha", r.task->alpha},
                 {"beta", r.task->beta}, {"G", r.task->G}, {"gamma", r.task->gamma}, {"error", r.task_error}};
  if (r.pass) {
    j["pass"] = {{"law", law_json(r.pass->loss)}, {"theta", r.pass->theta}, {"error", r.pass_error}};
  }
}

// Reads a law file with the key in each complaint.
class LawReader {
 public:
  LawReader(std::string_view text, const std::string& file)
      : file_(file), all_(parse_json(text, file, kMostLawBytes)) {
    if (!all_.is_object() || !all_.contains("law"))
      bad_request("{}: no key law; expected a file of `trireme scale fit --out`", printable(file));
  }

  LawFile read() {
    LawFile f;
    f.parametric.law = law(all_["law"], "law");
    f.parametric.fit.converged = true;
    if (all_.contains("level")) f.parametric.level = number(all_["level"], "level", 0.01, 0.999);
    f.parametric.resampled = laws("resampled");
    f.parametric.redrawn = laws("redrawn");
    for (const nlohmann::json& v : list(all_, "residuals"))
      f.parametric.residuals.push_back(number(v, "residuals", -100, 100));
    f.parametric.points = int(f.parametric.residuals.size());
    if (f.parametric.residuals.empty()) f.parametric.resampled.clear(), f.parametric.redrawn.clear();
    if (all_.contains("range")) f.range = range(all_["range"]);
    if (all_.contains("task")) f.task = task(all_["task"]);
    if (all_.contains("pass")) f.pass = pass(all_["pass"]);
    f.lr = rate("lr");
    f.batch = rate("batch");
    return f;
  }

 private:
  [[noreturn]] void refuse(std::string_view key, const nlohmann::json& value, std::string_view right) const {
    bad_request("{}: {} = {}: expected {}", printable(file_), key, printable(value.dump()), right);
  }
  double number(const nlohmann::json& j, std::string_view key, double low, double high) const {
    if (!j.is_number() || !(j.get<double>() >= low && j.get<double>() <= high))
      refuse(key, j, fmt::format("a number from {:g} to {:g}", low, high));
    return j.get<double>();
  }
  double at(const nlohmann::json& j, const char* key, std::string_view of, double low, double high) const {
    if (!j.is_object() || !j.contains(key)) refuse(of, j, fmt::format("an object with a key {}", key));
    return number(j[key], fmt::format("{}.{}", of, key), low, high);
  }
  static nlohmann::json list(const nlohmann::json& j, const char* key) {
    return j.contains(key) && j[key].is_array() ? j[key] : nlohmann::json::array();
  }
  ChinchillaLaw law(const nlohmann::json& j, std::string_view of) const {
    return {at(j, "E", of, 0, 1e4), at(j, "A", of, 1e-30, 1e100), at(j, "B", of, 1e-30, 1e100),
            at(j, "alpha", of, 1e-4, 10), at(j, "beta", of, 1e-4, 10)};
  }
  std::vector<ChinchillaLaw> laws(const char* key) const {
    std::vector<ChinchillaLaw> all;
    for (const nlohmann::json& l : list(all_, key)) {
      if (!l.is_array() || l.size() != 5) refuse(key, l, "lists of E, A, B, alpha, beta");
      std::array<double, 5> v{};
      for (size_t i = 0; i < 5; i++) v[i] = number(l[i], key, 0, 1e300);
      all.push_back({v[0], v[1], v[2], v[3], v[4]});
    }
    return all;
  }
  Interval interval(const nlohmann::json& j, const char* key) const {
    if (!j.is_object() || !j.contains(key) || !j[key].is_array() || j[key].size() != 2)
      refuse("range", j, "N, D and C, each [lowest, highest]");
    return {number(j[key][0], key, 0, 1e300), number(j[key][1], key, 0, 1e300)};
  }
  FittedRange range(const nlohmann::json& j) const {
    return {interval(j, "N"), interval(j, "D"), interval(j, "C")};
  }
  TaskLaw task(const nlohmann::json& j) const {
    return {at(j, "E", "task", 0, 1e4),       at(j, "A", "task", 1e-30, 1e100),
            at(j, "B", "task", 1e-30, 1e100), at(j, "alpha", "task", 1e-4, 10),
            at(j, "beta", "task", 1e-4, 10),  at(j, "G", "task", 0, 1e100),
            at(j, "gamma", "task", 1e-4, 10)};
  }
  PassLaw pass(const nlohmann::json& j) const {
    if (!j.is_object() || !j.contains("law") || !j.contains("theta") || !j["theta"].is_array() ||
        j["theta"].size() != 5)
      refuse("pass", j, "an object with law and five numbers theta");
    PassLaw p{law(j["law"], "pass.law"), {}};
    for (size_t i = 0; i < 5; i++) p.theta[i] = number(j["theta"][i], "pass.theta", -1e9, 1e9);
    return p;
  }
  std::optional<RateLaw> rate(const char* key) const {
    if (!all_.contains(key) || !all_[key].is_object() || all_[key].contains("none")) return {};
    const nlohmann::json& j = all_[key];
    RateLaw l;
    l.log_c = std::log(at(j, "c", key, 1e-300, 1e300));
    l.knows_n = j.contains("N");
    l.knows_d = j.contains("D");
    if (l.knows_n) l.n = at(j, "N", key, -10, 10);
    if (l.knows_d) l.d = at(j, "D", key, -10, 10);
    return l;
  }

  const std::string& file_;
  nlohmann::json all_;
};

}  // namespace

std::string fit_json(const FitReport& r, const std::vector<ForecastAt>& forecasts) {
  Ordered j = {{"rows", r.rows}, {"runs", r.runs}, {"range", range_json(r.range)}};
  j["envelope"] = frontier_json(r.envelope);
  j["isoflop"] = frontier_json(r.isoflop);
  if (const auto& f = r.parametric) {
    j["law"] = law_json(f->law);
    const auto of = [&](double ChinchillaLaw::*field) {
      return pair_of(f->of([&](const ChinchillaLaw& l) { return l.*field; }));
    };
    j["intervals"] = {{"E", of(&ChinchillaLaw::E)},
                      {"A", of(&ChinchillaLaw::A)},
                      {"B", of(&ChinchillaLaw::B)},
                      {"alpha", of(&ChinchillaLaw::alpha)},
                      {"beta", of(&ChinchillaLaw::beta)}};
    j["a"] = f->law.beta / (f->law.alpha + f->law.beta);
    j["a_interval"] = pair_of(f->of([](const ChinchillaLaw& l) { return l.beta / (l.alpha + l.beta); }));
    j["level"] = f->level;
    j["spread"] = f->spread;
    j["objective"] = f->fit.objective;
    j["converged"] = f->fit.converged;
  }
  j["lr"] = rate_json(r.lr);
  j["batch"] = rate_json(r.batch);
  j["critical_batch"] = rate_json(r.critical.law);
  add_samples(j, r);
  for (const ForecastAt& at : forecasts) {
    if (!r.parametric) break;
    const double flops = at.flops;
    const Allocation a = allocation_of(at, r.parametric->law);
    j["forecasts"].push_back({{"C", flops},
                              {"N", a.parameters},
                              {"D", a.tokens},
                              {"loss", r.parametric->law.loss(a.parameters, a.tokens)},
                              {"interval", pair_of(r.parametric->loss_of_run(a.parameters, a.tokens))}});
  }
  return j.dump(2) + "\n";
}

std::string law_file_text(const FitReport& r) {
  if (!r.parametric)
    bad_request("--out: {}: no law of loss: {}; expected a table that has one", r.source, r.no_parametric);
  Ordered j = {
      {"law", law_json(r.parametric->law)}, {"level", r.parametric->level}, {"range", range_json(r.range)}};
  j["lr"] = rate_json(r.lr);
  j["batch"] = rate_json(r.batch);
  j["critical_batch"] = rate_json(r.critical.law);
  add_samples(j, r);
  j["residuals"] = r.parametric->residuals;
  const auto add = [&](const char* key, const std::vector<ChinchillaLaw>& laws) {
    j[key] = Ordered::array();
    for (const ChinchillaLaw& l : laws) j[key].push_back({l.E, l.A, l.B, l.alpha, l.beta});
  };
  add("resampled", r.parametric->resampled);
  add("redrawn", r.parametric->redrawn);
  return j.dump(1) + "\n";
}

LawFile read_law_file(std::string_view text, const std::string& file) {
  return LawReader(text, file).read();
}

}  // namespace trireme
