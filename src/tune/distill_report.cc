#include "tune/distill_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"

namespace trireme {
namespace {

// 97.5 % quantiles of Student's t, by degrees of freedom.
constexpr double kT[] = {0,     12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                         2.201, 2.179,  2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086};
double t_quantile(int64_t freedom) {
  return freedom < int64_t(std::size(kT)) ? kT[freedom] : 1.96 + 2.4 / double(freedom);
}

std::string points(const SeedMean& m) {
  if (std::isnan(m.low)) return fmt::format("{:5.2f} %", 100 * m.mean);
  return fmt::format("{:5.2f} % ({:.2f} to {:.2f})", 100 * m.mean, 100 * m.low, 100 * m.high);
}

nlohmann::ordered_json json_of(const SeedMean& m) {
  return {{"mean", m.mean}, {"low", m.low}, {"high", m.high}, {"seeds", m.seeds}};  // NaN is null
}

std::string_view trimmed(std::string_view s) {
  const size_t first = s.find_first_not_of(" \t\r");
  return first == s.npos ? std::string_view() : s.substr(first, s.find_last_not_of(" \t\r") + 1 - first);
}

bool does_nothing(std::string_view line) {
  if (line.starts_with("def "))
    if (const size_t colon = line.rfind(':'); colon != line.npos) line = trimmed(line.substr(colon + 1));
  return line.empty() || line.starts_with('#') || line == "pass" || line == "..." || line == "return" ||
         line == "return None" || line.starts_with("raise NotImplementedError");
}

}  // namespace

SeedMean mean_over_seeds(const std::vector<double>& values) {
  require(!values.empty(), "the mean of nothing");
  SeedMean m;
  m.seeds = int64_t(values.size());
  for (double v : values) m.mean += v / double(m.seeds);
  m.low = m.high = std::numeric_limits<double>::quiet_NaN();
  if (m.seeds < 2) return m;
  double squares = 0;
  for (double v : values) squares += (v - m.mean) * (v - m.mean);
  const double error = std::sqrt(squares / double(m.seeds - 1) / double(m.seeds));
  m.low = m.mean - t_quantile(m.seeds - 1) * error;
  m.high = m.mean + t_quantile(m.seeds - 1) * error;
  return m;
}

std::vector<SweepGain> gains_of(const std::vector<SweepPoint>& points) {
  std::set<double> temperatures;
  std::set<uint64_t> seeds;
  std::map<int64_t, size_t> ks;
  std::map<std::tuple<bool, double, uint64_t>, const SweepPoint*> at;
  for (const SweepPoint& p : points) {
    temperatures.insert(p.temperature);
    seeds.insert(p.seed);
    for (const auto& [k, pass] : p.pass) ks[k]++;
    at[{p.after, p.temperature, p.seed}] = &p;
  }
  require(!at.empty() && at.size() == points.size() && at.size() == 2 * temperatures.size() * seeds.size(),
          "a sweep with holes");
  std::vector<SweepGain> all;
  for (const auto& [k, count] : ks) {
    if (count != points.size()) continue;
    SweepGain g{.k = k, .temperatures = {temperatures.begin(), temperatures.end()}};
    const auto by_seed = [&](bool after, double t) {
      std::vector<double> values;
      for (uint64_t seed : seeds) values.push_back(at.at({after, t, seed})->pass.at(k));
      return values;
    };
    for (double t : temperatures) {
      g.before.push_back(mean_over_seeds(by_seed(false, t)));
      g.after.push_back(mean_over_seeds(by_seed(true, t)));
      if (g.before.size() == 1 || g.before.back().mean > g.best_before.mean) {
        g.best_before = g.before.back();
        g.best_before_t = t;
      }
      if (g.after.size() == 1 || g.after.back().mean > g.best_after.mean) {
        g.best_after = g.after.back();
        g.best_after_t = t;
      }
    }
    const std::vector<double> before = by_seed(false, g.best_before_t), after = by_seed(true, g.best_after_t);
    std::vector<double> gain;
    for (size_t i = 0; i < before.size(); i++) gain.push_back(after[i] - before[i]);
    g.gain = mean_over_seeds(gain);
    all.push_back(g);
  }
  return all;
}

std::string gains_text(const std::vector<SweepGain>& all) {
  std::string out;
  for (const SweepGain& g : all) {
    out += fmt::format("pass@{:<3} temperature   before                        after\n", g.k);
    for (size_t i = 0; i < g.temperatures.size(); i++)
      out += fmt::format("         {:<13g} {:<29} {}\n", g.temperatures[i], points(g.before[i]),
                         points(g.after[i]));
    out += fmt::format("  the best of each: {:.2f} % at {:g} before, {:.2f} % at {:g} after: {:+.2f} points",
                       100 * g.best_before.mean, g.best_before_t, 100 * g.best_after.mean, g.best_after_t,
                       100 * g.gain.mean);
    if (std::isnan(g.gain.low))
      out += "; one seed has no interval\n";
    else
      out += fmt::format(" (95 % interval {:+.2f} to {:+.2f} over {} seeds): {}\n", 100 * g.gain.low,
                         100 * g.gain.high, g.gain.seeds,
                         g.shown()         ? "a gain"
                         : g.gain.high < 0 ? "a loss"
                                           : "no difference is shown");
  }
  return out;
}

nlohmann::ordered_json gains_json(const std::vector<SweepGain>& all) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const SweepGain& g : all) {
    nlohmann::ordered_json j = {{"k", g.k}, {"sweep", nlohmann::ordered_json::array()}};
    for (size_t i = 0; i < g.temperatures.size(); i++)
      j["sweep"].push_back({{"temperature", g.temperatures[i]},
                            {"before", json_of(g.before[i])},
                            {"after", json_of(g.after[i])}});
    j["best_before"] = {{"temperature", g.best_before_t}, {"pass", json_of(g.best_before)}};
    j["best_after"] = {{"temperature", g.best_after_t}, {"pass", json_of(g.best_after)}};
    j["gain"] = json_of(g.gain);
    out.push_back(j);
  }
  return out;
}

SampleKind kind_of_sample(std::string_view sample) {
  std::string_view only;
  size_t lines = 0;
  while (!sample.empty()) {
    const size_t end = std::min(sample.find('\n'), sample.size());
    const std::string_view line = trimmed(sample.substr(0, end));
    sample.remove_prefix(std::min(end + 1, sample.size()));
    if (line.empty() || line.starts_with("```")) continue;
    only = line;
    lines++;
  }
  if (lines == 0) return SampleKind::empty;
  return lines == 1 && does_nothing(only) ? SampleKind::stub : SampleKind::kept;
}

}  // namespace trireme
