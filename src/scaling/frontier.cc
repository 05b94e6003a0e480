// Approaches 1 and 2 of Hoffmann et al. 2022.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "scaling/law.h"
#include "scaling/lbfgs.h"

namespace trireme {
namespace {

constexpr int kFlopsPoints = 200;  // points of the envelope
constexpr size_t kLeastBudgets = 2;
constexpr double kSameSize = 0.01;  // distance in log N

// loss over log FLOPs of one size, ascending.
struct Curve {
  double log_n = 0;
  std::vector<std::pair<double, double>> points;
  bool covers(double log_c) const { return log_c >= points.front().first && log_c <= points.back().first; }
  double loss(double log_c) const {
    const auto next =
        std::lower_bound(points.begin(), points.end(), log_c, [](auto& p, double c) { return p.first < c; });
    if (next == points.begin()) return points.front().second;
    const auto last = next - 1;
    const double share = (log_c - last->first) / (next->first - last->first);
    return last->second + share * (next->second - last->second);
  }
};

std::vector<Curve> curves_of(const std::vector<LossPoint>& points) {
  std::vector<LossPoint> sorted = points;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const LossPoint& a, const LossPoint& b) { return a.parameters < b.parameters; });
  std::vector<Curve> curves;
  for (const LossPoint& p : sorted) {
    const double n = std::log(p.parameters);
    if (curves.empty() || n > curves.back().log_n + kSameSize) curves.push_back({n, {}});
    curves.back().points.emplace_back(std::log(p.flops), p.loss);
  }
  for (Curve& c : curves) {
    std::sort(c.points.begin(), c.points.end());
    // Keeps the lowest of several losses at the same FLOPs.
    const auto same = [](auto& a, auto& b) { return b.first - a.first < 1e-9; };
    c.points.erase(std::unique(c.points.begin(), c.points.end(), same), c.points.end());
  }
  std::erase_if(curves, [](const Curve& c) { return c.points.size() < 2; });
  return curves;
}

// The abscissa of the extremum of the parabola through three points.
double vertex(const double (&x)[3], const double (&y)[3]) {
  const double a = (y[2] - y[1]) / (x[2] - x[1]);
  const double b = (y[1] - y[0]) / (x[1] - x[0]);
  const double curvature = (a - b) / (x[2] - x[0]);
  return curvature > 0 ? 0.5 * (x[0] + x[1] - b / curvature) : x[1];
}

std::vector<FrontierPoint> envelope_of(const std::vector<Curve>& curves) {
  double low = INFINITY;
  double high = -INFINITY;
  for (const Curve& c : curves) {
    low = std::min(low, c.points.front().first);
    high = std::max(high, c.points.back().first);
  }
  std::vector<FrontierPoint> front;
  for (int i = 0; i < kFlopsPoints && low < high; i++) {
    const double c = low + (high - low) * i / (kFlopsPoints - 1);
    std::vector<const Curve*> here;
    for (const Curve& curve : curves)
      if (curve.covers(c)) here.push_back(&curve);
    if (here.size() < 3) continue;
    const auto best =
        std::min_element(here.begin(), here.end(), [&](auto* a, auto* b) { return a->loss(c) < b->loss(c); });
    if (best == here.begin() || best + 1 == here.end()) continue;  // the best size may be beyond
    const double n[] = {best[-1]->log_n, best[0]->log_n, best[1]->log_n};
    const double y[] = {best[-1]->loss(c), best[0]->loss(c), best[1]->loss(c)};
    front.push_back({std::exp(c), std::exp(vertex(n, y)), y[1]});
  }
  return front;
}

// log N = log_n + a log C by least squares.
void fit_line(FrontierFit& f) {
  double mean_c = 0;
  double mean_n = 0;
  for (const FrontierPoint& p : f.points) {
    mean_c += std::log(p.flops) / double(f.points.size());
    mean_n += std::log(p.parameters) / double(f.points.size());
  }
  double cc = 0;
  double cn = 0;
  for (const FrontierPoint& p : f.points) {
    const double c = std::log(p.flops) - mean_c;
    cc += c * c;
    cn += c * (std::log(p.parameters) - mean_n);
  }
  f.a = cn / cc;
  f.log_n = mean_n - f.a * mean_c;
}

bool spans(const FrontierFit& f) {
  if (f.points.size() < kLeastBudgets) return false;
  const auto by = [](auto& a, auto& b) { return a.flops < b.flops; };
  const auto [low, high] = std::minmax_element(f.points.begin(), f.points.end(), by);
  return high->flops > 1.5 * low->flops;
}

// Fits of resampled runs; `f_of` makes the fit's points of rows.
template <class PointsOf>
void bootstrap(FrontierFit& f, const std::vector<LossPoint>& points, const BootstrapOptions& o,
               PointsOf&& points_of) {
  std::vector<int> runs;
  for (const LossPoint& p : points) runs.push_back(p.run);
  std::vector<double> values;
  for (int64_t i = 0; i < o.resamples; i++) {
    const std::vector<double> weight = resampled(runs, o.seed, i);
    std::vector<LossPoint> some;
    for (size_t j = 0; j < points.size(); j++)
      for (int times = 0; times < int(weight[j]); times++) some.push_back(points[j]);
    FrontierFit again;
    again.points = points_of(some);
    if (!spans(again)) continue;
    fit_line(again);
    values.push_back(again.a);
  }
  f.interval = values.empty() ? Interval{f.a, f.a} : central(values, o.level);
}

void fit_parabola(IsoFlop& f) {
  std::vector<double> x;
  std::vector<double> y;
  f.middle = 0;
  for (const LossPoint& p : f.points) f.middle += std::log(p.parameters) / double(f.points.size());
  double low = INFINITY;
  double high = -INFINITY;
  for (const LossPoint& p : f.points) {
    const double v = std::log(p.parameters) - f.middle;
    low = std::min(low, v);
    high = std::max(high, v);
    x.insert(x.end(), {1.0, v, v * v});
    y.push_back(p.loss);
  }
  const std::vector<double> c = least_squares(x, y, std::vector<double>(y.size(), 1.0), 3);
  if (c.empty()) return;
  f.c0 = c[0];
  f.c1 = c[1];
  f.c2 = c[2];
  const double at = -f.c1 / (2 * f.c2);
  f.has_minimum = f.c2 > 0 && at > low && at < high;
}

std::vector<FrontierPoint> minima_of(const std::vector<IsoFlop>& budgets) {
  std::vector<FrontierPoint> points;
  for (const IsoFlop& f : budgets)
    if (f.has_minimum) points.push_back({f.flops, f.best(), f.loss_at(f.best())});
  return points;
}

}  // namespace

double FrontierFit::parameters(double flops) const {
  return std::exp(log_n + a * std::log(flops));
}

FrontierFit fit_envelope(const std::vector<LossPoint>& points, const BootstrapOptions& o) {
  FrontierFit f;
  const std::vector<Curve> curves = curves_of(points);
  if (curves.size() < 4) {
    f.none = fmt::format("{} sizes have points at several FLOPs; expected at least 4", curves.size());
    return f;
  }
  f.points = envelope_of(curves);
  if (!spans(f)) {
    f.none = "no size between others is the best over a factor of 1.5 in FLOPs";
    return f;
  }
  fit_line(f);
  bootstrap(f, points, o, [](const std::vector<LossPoint>& some) { return envelope_of(curves_of(some)); });
  return f;
}

double IsoFlop::best() const {
  return std::exp(middle - c1 / (2 * c2));
}
double IsoFlop::loss_at(double parameters) const {
  const double x = std::log(parameters) - middle;
  return c0 + c1 * x + c2 * x * x;
}

std::vector<IsoFlop> isoflops(const std::vector<LossPoint>& points, double tolerance) {
  std::vector<LossPoint> sorted = points;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const LossPoint& a, const LossPoint& b) { return a.flops < b.flops; });
  std::vector<IsoFlop> budgets;
  for (const LossPoint& p : sorted) {
    if (budgets.empty() || std::log(p.flops / budgets.back().points.front().flops) > tolerance)
      budgets.emplace_back();
    budgets.back().points.push_back(p);
  }
  for (IsoFlop& f : budgets) {
    for (const LossPoint& p : f.points) f.flops += std::log(p.flops) / double(f.points.size());
    f.flops = std::exp(f.flops);
    std::stable_sort(f.points.begin(), f.points.end(),
                     [](const LossPoint& a, const LossPoint& b) { return a.parameters < b.parameters; });
  }
  std::erase_if(budgets, [](const IsoFlop& f) {
    std::vector<double> sizes;
    for (const LossPoint& p : f.points) sizes.push_back(p.parameters);
    return std::unique(sizes.begin(), sizes.end()) - sizes.begin() < 3;
  });
  for (IsoFlop& f : budgets) fit_parabola(f);
  return budgets;
}

FrontierFit fit_isoflops(const std::vector<LossPoint>& points, const BootstrapOptions& o) {
  FrontierFit f;
  const std::vector<IsoFlop> budgets = isoflops(points);
  f.points = minima_of(budgets);
  if (!spans(f)) {
    f.none = fmt::format(
        "{} budgets have three sizes within 10 % of their FLOPs, and {} of them a best one between "
        "others; expected at least {}",
        budgets.size(), f.points.size(), kLeastBudgets);
    return f;
  }
  fit_line(f);
  bootstrap(f, points, o, [](const std::vector<LossPoint>& some) { return minima_of(isoflops(some)); });
  return f;
}

}  // namespace trireme
