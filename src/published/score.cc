#include "published/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/file.h"
#include "cost/step_memory.h"

namespace trireme {
namespace {

// The value below which a share q of `v` lies (nearest rank).
double quantile_of(std::vector<double> v, double q) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  const auto at = size_t(std::ceil(q * double(v.size())));
  return v[std::clamp<size_t>(at, 1, v.size()) - 1];
}

double middle_of(std::vector<double> v) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  const size_t n = v.size();
  return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

double percent_off(double predicted, double measured) {
  return 100 * std::abs(predicted / measured - 1);
}

// Which half of its family a row is in: configurations in an order drawn by
// `split`, taken in turns.
std::vector<int> halves_of(const std::vector<const MeasuredRow*>& rows, int split) {
  std::map<std::string, std::map<std::pair<uint64_t, std::string>, int>> families;
  const auto key = [split](const MeasuredRow& r) {
    const std::string& c = r.configuration;
    return std::pair(hash64(c.data(), c.size(), uint64_t(split)), c);
  };
  for (const MeasuredRow* r : rows) families[r->family][key(*r)] = 0;
  for (auto& [family, configurations] : families) {
    int turn = int(hash64(family.data(), family.size(), uint64_t(split)) & 1);
    for (auto& [name, half] : configurations) half = turn, turn = 1 - turn;
  }
  std::vector<int> halves;
  for (const MeasuredRow* r : rows) halves.push_back(families[r->family][key(*r)]);
  return halves;
}

// A quantity that is forecast.
struct Measure {
  double (*measured)(const MeasuredRow&);
  RowForecast (*forecast)(const MeasuredRow&, const FitValues&);
  double (*control)(const MeasuredRow&);
  const char* name;
  double usual;  // 80 % of data/published_runs.json are, held out, within this of their cases, in logarithms
};
double seconds_of(const MeasuredRow& r) {
  return r.step_s;
}
double bytes_of(const MeasuredRow& r) {
  return r.memory;
}
constexpr Measure kTime = {seconds_of, forecast_of, control_seconds, "", 0.085};
constexpr Measure kMemory = {bytes_of, memory_of, control_bytes, "memory", 0.073};

// One constant for each family and precision: the median of measured over control. A row without such rows
// takes its family's constant, then its precision's, then the constant of all rows.
class FittedControl {
 public:
  explicit FittedControl(const Measure& m) : m_(m) {}
  void add(const MeasuredRow& r) {
    const double ratio = m_.measured(r) / m_.control(r);
    for (const std::string& k : keys(r)) ratios_[k].push_back(ratio);
  }
  double value(const MeasuredRow& r) const {
    for (const std::string& k : keys(r))
      if (const auto it = ratios_.find(k); it != ratios_.end()) return m_.control(r) * middle_of(it->second);
    return m_.control(r);
  }

 private:
  static std::vector<std::string> keys(const MeasuredRow& r) {
    const std::string numbers = "/" + std::to_string(int(r.cases[0].numbers));
    return {r.family + numbers, r.family, numbers, ""};
  }
  const Measure& m_;
  std::map<std::string, std::vector<double>> ratios_;
};

// Of one row, one entry a split.
struct HeldOut {
  std::vector<double> predicted, low, high, control;
};

// How far outside of its cases' range a measurement lies, in logarithms: the
// score that intervals are made of.
double outside(const RowForecast& f, double measured) {
  return std::max({0.0, std::log(measured / f.high), std::log(f.low / measured)});
}

// 80 % intervals of one half by the residuals of the other (cross-conformal,
// Vovk 2015): a family's own where it has enough, else those of all small
// families together. Where all together are too few, as in a file of a few rows of one's own, no narrower
// than what is usual.
class Residuals {
 public:
  explicit Residuals(double usual) : usual_(usual) {}
  void add(const MeasuredRow& r, double score) { own_[r.family].push_back(score); }
  void pool() {
    for (const auto& [family, scores] : own_) {
      if (scores.size() < kEnough) few_.insert(few_.end(), scores.begin(), scores.end());
      all_.insert(all_.end(), scores.begin(), scores.end());
    }
  }
  double width(const MeasuredRow& r) const {
    const auto it = own_.find(r.family);
    if (it != own_.end() && it->second.size() >= kEnough) return of(it->second);
    if (few_.size() >= kEnough) return of(few_);
    return all_.size() >= kEnough ? of(all_) : std::max(of(all_), usual_);
  }

 private:
  static constexpr size_t kEnough = 8;
  static double of(const std::vector<double>& scores) {
    constexpr double kCoverage = 0.8;
    const auto n = double(scores.size());
    return n == 0 ? 0 : quantile_of(scores, std::min(1.0, kCoverage * (n + 1) / n));
  }
  std::map<std::string, std::vector<double>> own_;
  std::vector<double> few_, all_;
  double usual_;
};

using Rows = std::vector<const MeasuredRow*>;

// Both halves of one split, each forecast by the constants of the other.
void hold_out(const Measure& m, const Rows& rows, const std::vector<int>& half,
              const std::array<ScoreConstants, 2>& fitted_without, std::vector<HeldOut>& held) {
  std::array<Residuals, 2> residuals = {Residuals(m.usual), Residuals(m.usual)};
  std::array<FittedControl, 2> controls = {FittedControl(m), FittedControl(m)};
  std::vector<RowForecast> forecasts(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto h = size_t(half[i]);
    forecasts[i] = m.forecast(*rows[i], fitted_without[h].of(*rows[i]));
    if (m.measured(*rows[i]) <= 0) continue;
    residuals[h].add(*rows[i], outside(forecasts[i], m.measured(*rows[i])));
    controls[1 - h].add(*rows[i]);
  }
  residuals[0].pool(), residuals[1].pool();
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto h = size_t(half[i]);
    const double width = std::exp(residuals[1 - h].width(*rows[i]));
    held[i].predicted.push_back(forecasts[i].middle), held[i].control.push_back(controls[h].value(*rows[i]));
    held[i].low.push_back(forecasts[i].low / width), held[i].high.push_back(forecasts[i].high * width);
  }
}

// The value below which a share q of the weight lies.
double weighted_quantile(std::vector<std::pair<double, double>> values_and_weights, double q) {
  std::sort(values_and_weights.begin(), values_and_weights.end());
  double all = 0, below = 0;
  for (const auto& [value, weight] : values_and_weights) all += weight;
  for (const auto& [value, weight] : values_and_weights)
    if ((below += weight) >= q * all) return value;
  return values_and_weights.empty() ? 0 : values_and_weights.back().first;
}

// Weight of a measured row's error for another row: 1 if both have one chip, number type and kind of
// feed-forward (dense or experts). 1/10 if they have one type and kind, else 1/100.
double likeness(const MeasuredRow& a, const MeasuredRow& b) {
  const StepCase &x = a.cases[0], &y = b.cases[0];
  if (x.numbers != y.numbers || x.model.moe() != y.model.moe()) return 0.01;
  return a.figures.bf16 == b.figures.bf16 ? 1 : 0.1;  // chips of one peak are one chip
}

// Half widths of 80 % intervals, in units of a row's spread: what holds 80 % of other publications' rows.
// Each publication counts alike. Rows of seconds have a weight by likeness, and a forecast of seconds belongs
// to one more publication. With n others the width therefore holds 0.8 (n + 1) / n of them, as in conformal
// prediction of one of n + 1 exchangeable groups (Lee, Barber and Willett 2023). A spread of bytes counts the
// difference between publications already (memory_spread).
class UnseenWidths {
 public:
  UnseenWidths(double usual, bool seconds) : usual_(usual), seconds_(seconds) {}
  void add(const MeasuredRow& r, double score) { scores_[r.publication].emplace_back(&r, score); }
  // row: null for the mean over all publications.
  double of(const MeasuredRow* row) const {
    constexpr size_t kLeastRows = 5, kLeastPublications = 4;
    constexpr double kCoverage = 0.8;
    std::vector<std::pair<double, double>> others;
    size_t publications = 0;
    for (const auto& [name, all] : scores_) {
      if ((row && name == row->publication) || all.size() < kLeastRows) continue;
      ++publications;
      for (const auto& [other, score] : all)
        others.emplace_back(score, (row && seconds_ ? likeness(*row, *other) : 1) / double(all.size()));
    }
    // Too few publications have enough rows to show how far off they are.
    if (publications < kLeastPublications) return usual_;
    const auto n = double(publications);
    return weighted_quantile(others, seconds_ ? std::min(1.0, kCoverage * (n + 1) / n) : kCoverage);
  }

 private:
  std::map<std::string, std::vector<std::pair<const MeasuredRow*, double>>> scores_;  // by publication
  double usual_;
  bool seconds_;
};

// Forecasts by constants that have not seen a row's publication. A spread is 1 of seconds, and of bytes
// memory_spread().
// Returns the half width over all of the rows' publications.
double hold_publications_out(const Measure& m, bool memory, const Rows& rows, const Rows& training,
                             const std::map<std::string, ScoreConstants>& without, double unseen,
                             std::vector<HeldOut>& held) {
  UnseenWidths widths(unseen, !memory);
  std::map<std::string, FittedControl> controls;
  std::vector<RowForecast> forecasts(rows.size());
  std::vector<double> spreads(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string& own = rows[i]->publication;
    const ScoreConstants& c = without.at(own);
    forecasts[i] = m.forecast(*rows[i], c.of(*rows[i]));
    spreads[i] = memory ? memory_spread(*rows[i], c) : 1;
    if (const auto [it, fresh] = controls.try_emplace(own, m); fresh)
      for (const MeasuredRow* r : training)
        if (r->publication != own && m.measured(*r) > 0) it->second.add(*r);
    if (const double measured = m.measured(*rows[i]); measured > 0)
      widths.add(*rows[i], outside(forecasts[i], measured) / spreads[i]);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const double width = std::exp(widths.of(rows[i]) * spreads[i]);
    held[i].predicted.push_back(forecasts[i].middle);
    held[i].control.push_back(controls.at(rows[i]->publication).value(*rows[i]));
    held[i].low.push_back(forecasts[i].low / width), held[i].high.push_back(forecasts[i].high * width);
  }
  return widths.of(nullptr);
}

// A layout of a sheet: forecast (logarithm) and measured.
struct SheetRow {
  double forecast = 0, measured = 0;
};
void add_sheets(const Measure& m, const std::vector<size_t>& which, const Rows& rows,
                const std::vector<HeldOut>& held, ScoreStats& s) {
  // A layout that was measured several times is one: the mean of its logarithms.
  std::map<std::string, std::map<std::string, std::pair<SheetRow, double>>> layouts;
  for (const size_t i : which) {
    double logs = 0;
    for (const double p : held[i].predicted) logs += std::log(p) / double(held[i].predicted.size());
    auto& [sum, n] = layouts[rows[i]->sheet][rows[i]->configuration];
    sum.forecast += logs;
    sum.measured += std::log(m.measured(*rows[i]));
    n += 1;
  }
  std::map<std::string, std::vector<SheetRow>> sheets;
  for (const auto& [sheet, all] : layouts)
    for (const auto& [layout, x] : all)
      sheets[sheet].push_back({x.first.forecast / x.second, std::exp(x.first.measured / x.second)});
  double ordered = 0;
  constexpr size_t kLeast = 4;  // layouts
  for (const auto& [name, all] : sheets) {
    if (all.size() < kLeast) continue;
    const SheetRow* first = &all[0];
    double best = all[0].measured;
    for (const SheetRow& x : all) {
      if (x.forecast < first->forecast) first = &x;
      best = std::min(best, x.measured);
    }
    ++s.sheets, s.regret += 100 * (first->measured / best - 1);
    for (size_t a = 0; a < all.size(); ++a)
      for (size_t b = 0; b < a; ++b) {
        const double measured = all[a].measured - all[b].measured,
                     forecast = all[a].forecast - all[b].forecast;
        if (measured == 0) continue;
        ++s.pairs, ordered += measured * forecast > 0 ? 1 : 0;
      }
  }
  if (s.sheets > 0) s.regret /= double(s.sheets);
  if (s.pairs > 0) s.ordered = 100 * ordered / double(s.pairs);
}

ScoreStats stats_of(const Measure& m, const std::string& name, const std::vector<size_t>& which,
                    const Rows& rows, const std::vector<HeldOut>& held) {
  ScoreStats s{.source = name, .rows = int64_t(which.size())};
  std::vector<double> errors;
  double inside = 0, logs = 0;
  for (const size_t i : which) {
    const double measured = m.measured(*rows[i]);
    s.control_mape += percent_off(m.control(*rows[i]), measured) / double(which.size());
    for (size_t k = 0; k < held[i].predicted.size(); ++k) {
      errors.push_back(percent_off(held[i].predicted[k], measured));
      logs += std::log(held[i].predicted[k] / measured);
      s.fitted_control_mape += percent_off(held[i].control[k], measured);
      inside += held[i].low[k] <= measured && measured <= held[i].high[k] ? 1 : 0;
    }
  }
  if (errors.empty()) return s;
  const auto n = double(errors.size());
  for (const double e : errors) s.mape += e / n;
  s.bias = 100 * (std::exp(logs / n) - 1);
  s.median = middle_of(errors), s.p90 = quantile_of(errors, 0.9);
  s.fitted_control_mape /= n, s.coverage = 100 * inside / n;
  add_sheets(m, which, rows, held, s);
  return s;
}

// Memory's interval against the device's: below it fits, above it does not, between it is risky.
constexpr std::string_view kDoesFit = "fits", kDoesNotFit = "does not fit";
std::string_view verdict_of(double low, double high, double room) {
  return high <= room ? kDoesFit : low > room ? kDoesNotFit : "risky";
}

// Which it was: rows that ran did fit.
VerdictStats verdicts_of(const std::string& name, const std::vector<size_t>& which, const Rows& rows,
                         const std::vector<HeldOut>& held, int64_t refused) {
  VerdictStats s{.source = name, .rows = int64_t(which.size()), .ran = refused};
  double ran_refused = double(refused), failed_fits = 0;
  double n = 0;
  for (const size_t i : which) {
    const double room = rows[i]->figures.memory;
    const bool ran = !rows[i]->out_of_memory;
    for (size_t k = 0; k < held[i].low.size(); ++k, ++n) {
      const std::string_view said = verdict_of(held[i].low[k], held[i].high[k], room);
      const bool fits = said == kDoesFit, fails = said == kDoesNotFit;
      const double one = 1 / double(held[i].low.size());
      if (ran && fails) ran_refused += one;
      if (!ran && fits) failed_fits += one;
      s.right += (ran && fits) || (!ran && fails) ? 1 : 0,
          s.wrong += (ran && fails) || (!ran && fits) ? 1 : 0;
      s.control_right += ran == (control_bytes(*rows[i]) <= room) ? 1 : 0;
    }
  }
  for (const size_t i : which) ++(rows[i]->out_of_memory ? s.failed : s.ran);
  if (s.ran > 0) s.ran_refused = 100 * ran_refused / double(s.ran);
  if (s.failed > 0) s.failed_fits = 100 * failed_fits / double(s.failed);
  if (n == 0) return s;
  s.right *= 100 / n, s.wrong *= 100 / n, s.control_right *= 100 / n,
      s.risky = std::max(0.0, 100 - s.right - s.wrong);
  return s;
}

// `of` for all of the rows that `counts` lets pass, by source and by family.
template <class Stats, class Counts, class Of>
Tables<Stats> tables_of(const Rows& rows, Counts&& counts, Of&& of) {
  std::map<std::string, std::vector<size_t>> sources, families;
  std::vector<size_t> every;
  for (size_t i = 0; i < rows.size(); ++i)
    if (counts(*rows[i]))
      every.push_back(i), sources[rows[i]->source].push_back(i), families[rows[i]->family].push_back(i);
  Tables<Stats> t;
  t.all = of("all", every);
  for (const auto& [name, which] : sources) t.sources.push_back(of(name, which));
  for (const auto& [name, which] : families) t.families.push_back(of(name, which));
  return t;
}

double geometric(const std::vector<double>& v) {
  double logs = 0;
  for (const double x : v) logs += std::log(x);
  return std::exp(logs / double(v.size()));
}

std::vector<RowVerdict> row_verdicts(const Rows& rows, const std::vector<HeldOut>& memory) {
  std::vector<RowVerdict> out;
  for (size_t i = 0; i < rows.size(); ++i) {
    const double low = geometric(memory[i].low), high = geometric(memory[i].high),
                 room = rows[i]->figures.memory;
    out.push_back({rows[i]->id, rows[i]->source, std::string(verdict_of(low, high, room)), low, high, room,
                   !rows[i]->out_of_memory, rows[i]->step_s > 0});
  }
  return out;
}

std::vector<ScoredRow> scored_rows(const Measure& m, const Rows& rows, const std::vector<HeldOut>& held,
                                   const std::vector<RowVerdict>& verdicts) {
  std::vector<ScoredRow> out;
  for (size_t i = 0; i < rows.size(); ++i) {
    const MeasuredRow& r = *rows[i];
    if (m.measured(r) > 0)
      out.push_back({r.id, r.source, r.family, *m.name ? m.name : r.metric, r.cases[0].model.moe(),
                     geometric(held[i].predicted), geometric(held[i].low), geometric(held[i].high),
                     m.measured(r), verdicts[i].verdict});
  }
  return out;
}

double over_cases(const MeasuredRow& r, double (*of)(const MeasuredRow&, const StepCase&)) {
  double logs = 0;
  for (const StepCase& c : r.likely_cases()) logs += std::log(of(r, c));
  return std::exp(logs / double(r.likely_cases().size()));
}

}  // namespace

double control_seconds(const MeasuredRow& r) {
  return over_cases(r, [](const MeasuredRow& row, const StepCase& c) {
    constexpr double kShare = 0.5;
    const double bubble = double(c.pp - 1) / double(c.chunks * c.microbatches);
    return step_flops(c, true) / (double(c.gpus()) * row.peak * kShare) * (1 + bubble);
  });
}

double control_bytes(const MeasuredRow& r) {
  return over_cases(r, [](const MeasuredRow&, const StepCase& c) { return least_memory(c); });
}

namespace {

std::vector<const MeasuredRow*> usable(std::span<const MeasuredRow> all) {
  Rows rows;
  for (const MeasuredRow& r : all)
    if (r.skipped.empty()) rows.push_back(&r);
  return rows;
}

struct Held {
  std::vector<HeldOut> time, memory;
  double unseen_seconds = 0, unseen_bytes = 0;
};

Held hold_halves_out(const Rows& rows, const ScoreConstants& constants, const ScoreConstants& unfitted,
                     int splits) {
  Held held{std::vector<HeldOut>(rows.size()), std::vector<HeldOut>(rows.size())};
  for (int split = 0; split < std::max(splits, 1); ++split) {
    const std::vector<int> half = halves_of(rows, split);
    std::array<ScoreConstants, 2> fitted_without;
    for (const int test : {0, 1}) {
      Rows training;
      for (size_t i = 0; i < rows.size(); ++i)
        if (half[i] != test) training.push_back(rows[i]);
      fitted_without[size_t(test)] = splits > 0 ? fit_constants(unfitted, training) : constants;
    }
    hold_out(kTime, rows, half, fitted_without, held.time);
    hold_out(kMemory, rows, half, fitted_without, held.memory);
  }
  return held;
}

Held hold_publications_out(const Rows& rows, const ScoreConstants& unfitted,
                           std::span<const MeasuredRow> others) {
  // A row that is given and shipped is one.
  std::set<std::pair<std::string, std::string>> given;
  for (const MeasuredRow* r : rows) given.emplace(r->source, r->id);
  Rows training = rows;
  for (const MeasuredRow* r : usable(others))
    if (!given.contains({r->source, r->id})) training.push_back(r);
  const ScoreConstants of_all = fit_constants(unfitted, training);
  std::map<std::string, ScoreConstants> without;
  for (const MeasuredRow* left_out : rows) {
    const auto [it, fresh] = without.try_emplace(left_out->publication);
    if (!fresh) continue;
    Rows seen;
    for (const MeasuredRow* r : training)
      if (r->publication != it->first) seen.push_back(r);
    it->second = fit_constants(unfitted, seen, Moves::all, &of_all);
  }
  Held held{std::vector<HeldOut>(rows.size()), std::vector<HeldOut>(rows.size())};
  held.unseen_seconds =
      hold_publications_out(kTime, false, rows, training, without, unfitted.unseen_seconds, held.time);
  held.unseen_bytes =
      hold_publications_out(kMemory, true, rows, training, without, unfitted.unseen_bytes, held.memory);
  return held;
}

}  // namespace

MeasuredRatios measured_ratios(const std::vector<ScoredRow>& rows, bool experts) {
  std::vector<double> ratios;
  for (const ScoredRow& r : rows)
    if (r.experts == experts) ratios.push_back(r.measured / r.predicted);
  return {quantile_of(ratios, 0.1), quantile_of(ratios, 0.9)};
}

SourceSummary summary_of(const std::vector<ScoreStats>& all, int64_t least) {
  SourceSummary s;
  double sheets = 0, pairs = 0;
  for (const ScoreStats& x : all) {
    sheets += x.sheets > 0 ? 1 : 0;
    s.regret += x.regret;
    pairs += x.pairs > 0 ? 1 : 0;
    s.ordered += x.ordered;
    if (x.rows < least) continue;
    ++s.sources;
    s.mape += x.mape;
    s.median += x.median;
    s.coverage += x.coverage;
    s.below_both += x.mape < x.control_mape && x.mape < x.fitted_control_mape ? 1 : 0;
  }
  const double n = std::max<double>(1, double(s.sources));
  s.mape /= n;
  s.median /= n;
  s.coverage /= n;
  s.regret /= std::max(1.0, sheets);
  s.ordered /= std::max(1.0, pairs);
  return s;
}

ScoreReport score_rows(const std::vector<MeasuredRow>& all, const ScoreConstants& constants,
                       const ScoreOptions& options) {
  ScoreReport report;
  std::map<std::string, int64_t> refused;  // by family, by source, of all
  for (const MeasuredRow& r : all) {
    if (!r.skipped.empty()) report.skipped.push_back({r.id, r.source, r.skipped});
    for (const std::string& n : r.notes) report.notes.push_back({r.id, r.source, n});
    if (!r.cannot_fit) continue;
    ++refused["all"], ++refused[r.source];
    if (r.family != r.source) ++refused[r.family];
  }
  const Rows rows = usable(all);
  // From the priors alone: what an earlier fit made of all rows would tell a half about the other.
  ScoreConstants unfitted = constants;
  unfitted.fitted.clear();
  const bool halves = options.leave_out != LeaveOut::publication;
  const Held held = halves ? hold_halves_out(rows, constants, unfitted,
                                             options.leave_out == LeaveOut::nothing ? 0 : options.splits)
                           : hold_publications_out(rows, unfitted, options.others);
  const auto tables = [&](const Measure& m, const std::vector<HeldOut>& of) {
    return tables_of<ScoreStats>(
        rows, [&](const MeasuredRow& r) { return m.measured(r) > 0; },
        [&](const std::string& name, const std::vector<size_t>& which) {
          return stats_of(m, name, which, rows, of);
        });
  };
  report.time = tables(kTime, held.time);
  report.memory = tables(kMemory, held.memory);
  report.fits = tables_of<VerdictStats>(
      rows, [](const MeasuredRow&) { return true; },
      [&](const std::string& name, const std::vector<size_t>& which) {
        return verdicts_of(name, which, rows, held.memory, refused[name]);
      });
  report.verdicts = row_verdicts(rows, held.memory);
  report.rows = scored_rows(kTime, rows, held.time, report.verdicts);
  report.memory_rows = scored_rows(kMemory, rows, held.memory, report.verdicts);
  report.unseen_seconds = held.unseen_seconds;
  report.unseen_bytes = held.unseen_bytes;
  report.measured_rows = report.time.all.rows;
  report.leave_out = options.leave_out;
  report.splits = options.leave_out == LeaveOut::half ? options.splits : 0;
  return report;
}

}  // namespace trireme
