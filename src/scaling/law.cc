#include "scaling/law.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/rng.h"

namespace trireme {
namespace {

constexpr size_t kLeastPoints = 6;  // one more than constants

ChinchillaLaw law_of(const PowerSum& s) {
  return {s.constant, s.terms[0].coefficient, s.terms[1].coefficient, s.terms[0].exponent,
          s.terms[1].exponent};
}

PowerData data_of(const std::vector<LossPoint>& points) {
  PowerData d{.terms = 2};
  for (const LossPoint& p : points) {
    d.x.insert(d.x.end(), {p.parameters, p.tokens});
    d.y.push_back(p.loss);
    d.weight.push_back(1);
  }
  return d;
}

// Residuals of a fit are smaller than those of a further run, by its five constants.
double residual_of_run(const std::vector<double>& residuals, uint64_t key, uint64_t draw) {
  const double n = double(residuals.size());
  return std::sqrt(n / std::max(1.0, n - 5)) * residuals[below(key, draw, residuals.size())];
}

// The rows with the fit's losses times redrawn residuals.
PowerData redrawn(const ParametricFit& f, PowerData d, uint64_t seed, int64_t index) {
  const uint64_t key = rng_key(seed, uint64_t(index), "scaling/redraw");
  for (size_t j = 0; j < d.y.size(); j++)
    d.y[j] *= std::exp(residual_of_run(f.residuals, key, j) - f.residuals[j]);
  return d;
}

void refuse_few(const std::vector<LossPoint>& points) {
  if (points.size() < kLeastPoints)
    bad_request("the parametric form has 5 constants, and there are {} losses; expected at least {}",
                points.size(), kLeastPoints);
  std::set<double> sizes;
  std::set<double> tokens;
  for (const LossPoint& p : points) {
    sizes.insert(p.parameters);
    tokens.insert(p.tokens);
  }
  if (sizes.size() < 3 || tokens.size() < 3)
    bad_request("runs of {} sizes and {} token counts identify no law; expected at least 3 of each",
                sizes.size(), tokens.size());
}

}  // namespace

Allocation chinchilla_optimum(const ChinchillaLaw& law, double flops) {
  const double g = std::pow(law.alpha * law.A / (law.beta * law.B), 1 / (law.alpha + law.beta));
  const double n = g * std::pow(flops / 6, law.beta / (law.alpha + law.beta));
  return {n, flops / (6 * n)};
}

Interval ParametricFit::of(const std::function<double(const ChinchillaLaw&)>& f) const {
  std::vector<double> values;
  for (const ChinchillaLaw& l : resampled) values.push_back(f(l));
  if (values.empty()) values.push_back(f(law));
  return central(values, level);
}

Interval ParametricFit::loss_of_run(double parameters, double tokens) const {
  std::vector<double> values;
  const uint64_t key = rng_key(1, 0, "scaling/residual");
  uint64_t draw = 0;
  for (const ChinchillaLaw& l : redrawn.empty() ? resampled : redrawn)
    for (int i = 0; i < 8; i++)
      values.push_back(l.loss(parameters, tokens) * std::exp(residual_of_run(residuals, key, draw++)));
  if (values.empty()) values.push_back(law.loss(parameters, tokens));
  return central(values, level);
}

ParametricFit fit_parametric(const std::vector<LossPoint>& points, const BootstrapOptions& o) {
  refuse_few(points);
  PowerData d = data_of(points);
  ParametricFit f;
  f.level = o.level;
  f.points = int(points.size());
  f.fit = fit_power_sum(d, FitLoss::huber_of_log);
  f.law = law_of(f.fit.law);
  double squares = 0;
  for (const LossPoint& p : points) {
    // So that a forecast is the law times exp(residual).
    f.residuals.push_back(std::log(p.loss / f.law.loss(p.parameters, p.tokens)));
    squares += f.residuals.back() * f.residuals.back();
  }
  f.spread = std::sqrt(squares / std::max(1.0, double(points.size()) - 5));
  std::vector<int> runs;
  for (const LossPoint& p : points) runs.push_back(p.run);
  const bool alone = std::set<int>(runs.begin(), runs.end()).size() == runs.size();
  const auto refit = [&](const PowerData& rows, std::vector<ChinchillaLaw>& laws) {
    const PowerFit again = fit_power_sum(rows, FitLoss::huber_of_log, &f.fit.law, true);
    if (std::isfinite(again.objective)) laws.push_back(law_of(again.law));
  };
  for (int64_t i = 0; i < o.resamples; i++) {
    PowerData rows = d;
    rows.weight = resampled(runs, o.seed, i);
    refit(rows, f.resampled);
    if (alone) refit(redrawn(f, d, o.seed, i), f.redrawn);
    if (o.done) o.done(i + 1);
  }
  return f;
}

}  // namespace trireme
