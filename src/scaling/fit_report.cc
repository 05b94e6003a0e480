#include "scaling/fit_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/progress.h"

namespace trireme {
namespace {

bool any(const std::vector<LossPoint>& points, auto&& of) {
  return std::any_of(points.begin(), points.end(), of);
}

FittedRange range_of(const std::vector<LossPoint>& points) {
  const auto of = [&](double LossPoint::*field) {
    Interval i{INFINITY, 0};
    for (const LossPoint& p : points) {
      i.low = std::min(i.low, p.*field);
      i.high = std::max(i.high, p.*field);
    }
    return i;
  };
  return {of(&LossPoint::parameters), of(&LossPoint::tokens), of(&LossPoint::flops)};
}

std::string interval_text(const Interval& i) {
  return fmt::format("[{:.4g}, {:.4g}]", i.low, i.high);
}

std::string constant_line(const ParametricFit& f, const char* name, double ChinchillaLaw::*field) {
  return fmt::format("  {:<6}{:>10.4g}  {}\n", name, f.law.*field,
                     interval_text(f.of([&](const ChinchillaLaw& l) { return l.*field; })));
}

double exponent_of(const ChinchillaLaw& l) {
  return l.beta / (l.alpha + l.beta);
}

std::string parametric_text(const FitReport& r) {
  if (!r.parametric) return fmt::format("approach 3 (parametric): none: {}\n", r.no_parametric);
  const ParametricFit& f = *r.parametric;
  std::string s = fmt::format(
      "approach 3 (parametric): L = E + A/N^alpha + B/D^beta of {} points, {:.0f} % intervals of {} "
      "resamples\n",
      f.points, 100 * f.level, f.resampled.size());
  s += constant_line(f, "E", &ChinchillaLaw::E) + constant_line(f, "A", &ChinchillaLaw::A) +
       constant_line(f, "B", &ChinchillaLaw::B) + constant_line(f, "alpha", &ChinchillaLaw::alpha) +
       constant_line(f, "beta", &ChinchillaLaw::beta);
  s += fmt::format("  N* = c C^a, a = beta / (alpha + beta) = {:.4f}  {}\n", exponent_of(f.law),
                   interval_text(f.of(exponent_of)));
  s += fmt::format("  residuals of log loss: {:.2g}; Huber sum {:.6g} after {} starts{}\n", f.spread,
                   f.fit.objective, f.fit.starts, f.fit.converged ? "" : "; NOT CONVERGED");
  return s;
}

std::string frontier_text(const char* name, const FrontierFit& f, const char* unit) {
  if (!f.none.empty()) return fmt::format("{}: none: {}\n", name, f.none);
  return fmt::format("{}: a = {:.4f}  {} from {} {}\n", name, f.a, interval_text(f.interval), f.points.size(),
                     unit);
}

std::string rate_text(const char* name, const RateLaw& l, const char* unit) {
  if (!l.none.empty()) return "";
  std::string s = fmt::format("{}: {:.4g}", name, std::exp(l.log_c));
  if (l.knows_n) s += fmt::format(" N^{:.3f} {}", l.n, interval_text(l.n_interval));
  if (l.knows_d) s += fmt::format(" D^{:.3f} {}", l.d, interval_text(l.d_interval));
  return s + fmt::format("{}; {} {}\n", unit, l.cells, "fitted cells");
}

std::string forecast_text(const FitReport& r, const ForecastAt& at) {
  if (!r.parametric) return "";
  const double flops = at.flops;
  const Allocation a = allocation_of(at, r.parametric->law);
  const Interval i = r.parametric->loss_of_run(a.parameters, a.tokens);
  std::string s = fmt::format(
      "forecast at {:.3g} FLOPs: {} parameters, {} tokens, loss {:.4f}, a run within [{:.4f}, {:.4f}]", flops,
      human_count(a.parameters), human_count(a.tokens), r.parametric->law.loss(a.parameters, a.tokens), i.low,
      i.high);
  if (flops > 10 * r.range.flops.high)
    s += fmt::format("; {:.0f} times the largest fitted run", flops / r.range.flops.high);
  return s + "\n";
}

std::string samples_text(const FitReport& r) {
  std::string s;
  if (r.task)
    s += fmt::format(
        "T2 approach 1 (task loss): E {:.4g} + {:.4g}/N^{:.4f} + {:.4g}/D^{:.4f} + {:.4g}/k^{:.4f}; mean "
        "error {:.2f} "
        "%\n",
        r.task->E, r.task->A, r.task->alpha, r.task->B, r.task->beta, r.task->G, r.task->gamma,
        100 * r.task_error);
  if (r.pass)
    s += fmt::format(
        "T2 approach 2 (pass@k): theta {:.4g}, {:.4g}, {:.4g}, {:.4g}, {:.4g}; mean error {:.2f} %\n",
        r.pass->theta[0], r.pass->theta[1], r.pass->theta[2], r.pass->theta[3], r.pass->theta[4],
        100 * r.pass_error);
  return s;
}

}  // namespace

Allocation allocation_of(const ForecastAt& at, const ChinchillaLaw& law) {
  if (at.parameters > 0) return {at.parameters, at.tokens};
  return chinchilla_optimum(law, at.flops);
}

std::vector<LossPoint> final_points(const std::vector<LossPoint>& points) {
  std::map<int, LossPoint> last;
  for (const LossPoint& p : points) {
    if (p.loss <= 0) continue;
    const auto [at, fresh] = last.emplace(p.run, p);
    if (!fresh && p.tokens > at->second.tokens) at->second = p;
  }
  std::map<std::pair<double, double>, const LossPoint*> best;
  for (const auto& [run, p] : last) {
    const LossPoint*& at = best[{p.parameters, p.tokens}];
    if (!at || p.loss < at->loss) at = &p;
  }
  std::vector<LossPoint> kept;
  for (const auto& [run, p] : last) {
    const LossPoint& b = *best[{p.parameters, p.tokens}];
    if (p.lr == b.lr && p.batch == b.batch) kept.push_back(p);
  }
  return kept;
}

FitReport fit_all(const std::vector<LossPoint>& points, const std::string& source,
                  const BootstrapOptions& o) {
  FitReport r;
  r.source = source;
  r.rows = int(points.size());
  for (const LossPoint& p : points) r.runs = std::max(r.runs, p.run + 1);
  r.finals = final_points(points);
  r.range = range_of(r.finals.empty() ? points : r.finals);
  const bool task = any(points, [](const LossPoint& p) { return p.task_loss > 0; });
  const bool pass = any(points, [](const LossPoint& p) { return p.pass >= 0; });
  try {
    r.parametric = fit_parametric(r.finals, o);
  } catch (const Error& e) {
    if (!task && !pass) throw Error(fmt::format("{}: {}", source, e.what()), e.fault);
    r.no_parametric = e.what();
  }
  r.envelope = fit_envelope(points, o);
  r.budgets = isoflops(r.finals);
  r.isoflop = fit_isoflops(r.finals, o);
  std::vector<LossPoint> ends = points;  // a sweep's runs, each at its end
  std::erase_if(ends, [&](const LossPoint& p) {
    return any(points, [&](const LossPoint& q) { return q.run == p.run && q.tokens > p.tokens; });
  });
  r.lr = fit_best_lr(ends, o);
  r.batch = fit_best_batch(ends, o);
  r.critical = fit_critical_batch(ends, o);
  if (task) {
    r.task = fit_task(points);
    r.task_error = relative_error(*r.task, points);
  }
  if (pass) {
    r.pass = fit_pass(points);
    r.pass_error = relative_error(*r.pass, points);
  }
  return r;
}

std::string fit_text(const FitReport& r, const std::vector<ForecastAt>& forecasts) {
  std::string s = fmt::format(
      "{}: {} rows of {} runs; {:.3g} to {:.3g} parameters, {:.3g} to {:.3g} tokens\n", r.source, r.rows,
      r.runs, r.range.parameters.low, r.range.parameters.high, r.range.tokens.low, r.range.tokens.high);
  s += frontier_text("approach 1 (envelope)", r.envelope, "FLOPs");
  s += frontier_text("approach 2 (IsoFLOP parabolas)", r.isoflop, "budgets");
  s += parametric_text(r);
  s += rate_text("best learning rate", r.lr, "");
  s += rate_text("best batch", r.batch, " tokens");
  s += rate_text("critical batch", r.critical.law, " tokens");
  s += samples_text(r);
  for (const ForecastAt& at : forecasts) s += forecast_text(r, at);
  return s;
}

}  // namespace trireme
