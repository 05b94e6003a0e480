#include "scaling/rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/rng.h"
#include "scaling/lbfgs.h"

namespace trireme {
namespace {

// Runs that differ in the rate alone: logarithm of the rate, and loss.
struct RateCell {
  double log_n = 0, log_d = 0;
  std::vector<double> x, y;
  std::vector<double> fitted;
  double best = 0;
};

// False: no minimum between the tried values.
bool fit_cell(RateCell& c, const std::vector<double>& y, bool keep) {
  double middle = 0;
  for (const double x : c.x) middle += x / double(c.x.size());
  std::vector<double> rows;
  for (const double x : c.x) rows.insert(rows.end(), {1.0, x - middle, (x - middle) * (x - middle)});
  const std::vector<double> p = least_squares(rows, y, std::vector<double>(y.size(), 1.0), 3);
  if (p.empty() || p[2] <= 0) return false;
  c.best = middle - p[1] / (2 * p[2]);
  const auto [low, high] = std::minmax_element(c.x.begin(), c.x.end());
  if (keep) {
    if (c.best <= *low || c.best >= *high) return false;
    c.fitted.clear();
    for (const double x : c.x) c.fitted.push_back(p[0] + (x - middle) * (p[1] + p[2] * (x - middle)));
  } else {  // a resample's vertex far outside says nothing
    c.best = std::clamp(c.best, *low - (*high - *low), *high + (*high - *low));
  }
  return true;
}

using RateKey = std::tuple<double, double, double>;

std::vector<RateCell> cells_of(const std::vector<LossPoint>& points, double LossPoint::*rate,
                               double LossPoint::*fixed) {
  std::map<RateKey, std::map<double, double>> losses;
  for (const LossPoint& p : points) {
    if (p.*rate <= 0 || p.loss <= 0) continue;
    auto& of = losses[{p.parameters, p.tokens, fixed ? p.*fixed : 0.0}];
    const auto [at, fresh] = of.emplace(p.*rate, p.loss);
    if (!fresh) at->second = std::min(at->second, p.loss);
  }
  std::vector<RateCell> cells;
  for (const auto& [key, of] : losses) {
    if (of.size() < 3) continue;
    RateCell c{std::log(std::get<0>(key)), std::log(std::get<1>(key))};
    for (const auto& [x, y] : of) {
      c.x.push_back(std::log(x));
      c.y.push_back(y);
    }
    if (fit_cell(c, c.y, true)) cells.push_back(std::move(c));
  }
  return cells;
}

bool varies(const std::vector<RateCell>& cells, double RateCell::*of) {
  const auto by = [&](const RateCell& a, const RateCell& b) { return a.*of < b.*of; };
  const auto [low, high] = std::minmax_element(cells.begin(), cells.end(), by);
  return (*high).*of - (*low).*of > 0.2;
}

// The law through the cells' best values. Where N and D grow in step, D alone carries both.
RateLaw law_through(const std::vector<RateCell>& cells) {
  RateLaw law;
  law.cells = int(cells.size());
  law.knows_n = varies(cells, &RateCell::log_n);
  law.knows_d = varies(cells, &RateCell::log_d);
  for (int tries = 0; tries < 2; tries++) {
    const size_t columns = 1 + size_t(law.knows_n) + size_t(law.knows_d);
    std::vector<double> x;
    std::vector<double> y;
    for (const RateCell& c : cells) {
      x.push_back(1);
      if (law.knows_n) x.push_back(c.log_n - cells[0].log_n);
      if (law.knows_d) x.push_back(c.log_d - cells[0].log_d);
      y.push_back(c.best);
    }
    const std::vector<double> p = cells.size() < columns
                                      ? std::vector<double>()
                                      : least_squares(x, y, std::vector<double>(y.size(), 1.0), columns);
    if (p.empty()) {
      law.knows_n = false;
      continue;
    }
    law.n = law.knows_n ? p[1] : 0;
    law.d = law.knows_d ? p[columns - 1] : 0;
    law.log_c = p[0] - law.n * cells[0].log_n - law.d * cells[0].log_d;
    return law;
  }
  law.none = "cells of one size and number of tokens";
  return law;
}

RateLaw fit_rate(std::vector<RateCell> cells, const char* what, const BootstrapOptions& o) {
  RateLaw law;
  if (cells.empty()) {
    law.none = fmt::format("no size and number of tokens has three {} with the best between others", what);
    return law;
  }
  law = law_through(cells);
  if (!law.none.empty()) return law;
  std::vector<double> residuals;
  for (const RateCell& c : cells) {  // a parabola leaves residuals of n - 3 of n runs
    if (c.x.size() <= 3) continue;
    const double wider = std::sqrt(double(c.x.size()) / double(c.x.size() - 3));
    for (size_t i = 0; i < c.y.size(); i++) residuals.push_back(wider * (c.y[i] - c.fitted[i]));
  }
  std::vector<double> n;
  std::vector<double> d;
  for (int64_t b = 0; b < o.resamples && !residuals.empty(); b++) {
    const uint64_t key = rng_key(o.seed, uint64_t(b), "scaling/rates");
    uint64_t draw = 0;
    for (RateCell& c : cells) {
      std::vector<double> y = c.fitted;
      for (double& v : y) v += residuals[below(key, draw++, residuals.size())];
      fit_cell(c, y, false);
    }
    const RateLaw again = law_through(cells);
    n.push_back(again.n);
    d.push_back(again.d);
  }
  law.n_interval = n.empty() ? Interval{law.n, law.n} : central(n, o.level);
  law.d_interval = d.empty() ? Interval{law.d, law.d} : central(d, o.level);
  return law;
}

// Each batch at its best tried rate.
std::vector<LossPoint> best_of_batches(const std::vector<LossPoint>& points) {
  std::map<RateKey, LossPoint> best;
  for (const LossPoint& p : points) {
    if (p.batch <= 0 || p.loss <= 0) continue;
    const auto [at, fresh] = best.emplace(RateKey{p.parameters, p.tokens, p.batch}, p);
    if (!fresh && p.loss < at->second.loss) at->second = p;
  }
  std::vector<LossPoint> kept;
  for (const auto& [key, p] : best) kept.push_back(p);
  return kept;
}

struct JointPoint {
  double log_n = 0, log_d = 0, log_b = 0, log_loss = 0, weight = 1;
};

// Constants: log A, log B, log E (centred), alpha, beta, log B_crit, its exponents of N and D.
double joint_loss(const std::vector<JointPoint>& points, std::span<const double> p) {
  double sum = 0;
  for (const JointPoint& q : points) {
    const double times = 1 + std::exp(q.log_b - p[5] - p[6] * q.log_n - p[7] * q.log_d);
    const double loss = std::exp(p[0] - p[3] * q.log_n) +
                        std::exp(p[1] - p[4] * (q.log_d - std::log(times))) + std::exp(p[2]);
    const double r = std::log(loss) - q.log_loss;
    constexpr double kDelta = 1e-3;
    const double size = std::abs(r);
    sum += q.weight * (size <= kDelta ? 0.5 * r * r : kDelta * (size - 0.5 * kDelta));
  }
  return sum;
}

}  // namespace

double RateLaw::at(double parameters, double tokens) const {
  return std::exp(log_c + n * std::log(parameters) + d * std::log(tokens));
}

RateLaw fit_best_lr(const std::vector<LossPoint>& points, const BootstrapOptions& o) {
  return fit_rate(cells_of(points, &LossPoint::lr, &LossPoint::batch), "learning rates", o);
}

RateLaw fit_best_batch(const std::vector<LossPoint>& points, const BootstrapOptions& o) {
  return fit_rate(cells_of(best_of_batches(points), &LossPoint::batch, nullptr), "batch sizes", o);
}

CriticalBatch fit_critical_batch(const std::vector<LossPoint>& all, const BootstrapOptions& o) {
  CriticalBatch found;
  const std::vector<LossPoint> points = best_of_batches(all);
  std::set<double> sizes;
  std::set<double> tokens;
  std::set<double> batches;
  for (const LossPoint& p : points) {
    sizes.insert(p.parameters);
    tokens.insert(p.tokens);
    batches.insert(p.batch);
  }
  if (points.size() < 12 || batches.size() < 3 || sizes.size() < 3 || tokens.size() < 3) {
    found.law.none = fmt::format(
        "{} runs of {} batch sizes, {} sizes and {} token counts; expected at least 12 runs and 3 of each",
        points.size(), batches.size(), sizes.size(), tokens.size());
    return found;
  }
  double mean_n = 0;
  double mean_d = 0;
  double mean_b = 0;
  for (const LossPoint& p : points) {
    mean_n += std::log(p.parameters) / double(points.size());
    mean_d += std::log(p.tokens) / double(points.size());
    mean_b += std::log(p.batch) / double(points.size());
  }
  std::vector<JointPoint> rows;
  for (const LossPoint& p : points)
    rows.push_back(
        {std::log(p.parameters) - mean_n, std::log(p.tokens) - mean_d, std::log(p.batch), std::log(p.loss)});
  const ChinchillaLaw first = fit_parametric(points, {.resamples = 0}).law;
  const Objective f = with_differences([&](std::span<const double> x) { return joint_loss(rows, x); });
  Minimum best{.value = INFINITY};
  for (const double times : {-2.0, 0.0, 2.0, 4.0}) {
    const Minimum m =
        minimise(f,
                 {std::log(first.A) - first.alpha * mean_n, std::log(first.B) - first.beta * mean_d,
                  std::log(first.E), first.alpha, first.beta, mean_b + times, 0.0, 0.2},
                 600);
    if (m.value < best.value) best = m;
  }
  found.loss = {std::exp(best.x[2]), std::exp(best.x[0] + best.x[3] * mean_n),
                std::exp(best.x[1] + best.x[4] * mean_d), best.x[3], best.x[4]};
  found.law = {.log_c = best.x[5] - best.x[6] * mean_n - best.x[7] * mean_d,
               .n = best.x[6],
               .d = best.x[7],
               .knows_n = true,
               .knows_d = true,
               .cells = int(points.size())};
  std::vector<int> runs(points.size());
  for (size_t i = 0; i < runs.size(); i++) runs[i] = int(i);
  std::vector<double> n;
  std::vector<double> d;
  for (int64_t i = 0; i < std::min<int64_t>(o.resamples, 100); i++) {
    const std::vector<double> weight = resampled(runs, o.seed, i);
    for (size_t j = 0; j < rows.size(); j++) rows[j].weight = weight[j];
    const Minimum m = minimise(f, best.x, 200);
    n.push_back(m.x[6]);
    d.push_back(m.x[7]);
  }
  found.law.n_interval = n.empty() ? Interval{found.law.n, found.law.n} : central(n, o.level);
  found.law.d_interval = d.empty() ? Interval{found.law.d, found.law.d} : central(d, o.level);
  return found;
}

}  // namespace trireme
