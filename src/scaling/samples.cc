#include "scaling/samples.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "scaling/lbfgs.h"

namespace trireme {
namespace {

constexpr size_t kLeastSampled = 8;

void refuse_few_samples(const std::vector<LossPoint>& points, const char* column) {
  std::set<double> samples;
  for (const LossPoint& p : points) samples.insert(p.samples);
  if (points.size() < kLeastSampled || samples.size() < 3)
    bad_request(
        "{} rows with {}, of {} values of k, identify no law; expected at least {} rows and 3 values of k",
        points.size(), column, samples.size(), kLeastSampled);
}

double mean_of(double loss, const std::array<double, 5>& t) {
  return t[2] / (1 + std::exp(t[1] * (loss - t[0])));
}

double pass_of(double loss, const std::array<double, 5>& t, double samples) {
  const double mean = std::clamp(mean_of(loss, t), 1e-12, 1 - 1e-12);
  const double size = std::clamp(std::exp(t[3] + t[4] * loss), 1e-9, 1e9);
  return beta_pass(mean * size, (1 - mean) * size, samples);
}

// One loss per model for stage 1 of approach 2.
std::vector<LossPoint> losses_of(const std::vector<LossPoint>& points) {
  std::vector<LossPoint> models;
  std::set<std::pair<double, double>> seen;
  for (LossPoint p : points) {
    if (p.loss == 0 && p.samples == 1) p.loss = p.task_loss;
    if (p.loss > 0 && seen.emplace(p.parameters, p.tokens).second) models.push_back(p);
  }
  return models;
}

// Starts of t0..t4: a sigmoid about each of some losses, and several spreads of difficulty.
std::vector<std::vector<double>> theta_starts(const std::vector<double>& losses) {
  const double low = *std::min_element(losses.begin(), losses.end());
  const double high = *std::max_element(losses.begin(), losses.end());
  const double span = std::max(high - low, 1e-3 * high);
  std::vector<std::vector<double>> starts;
  for (const double middle : {low - 0.25 * span, low + 0.25 * span, low + 0.75 * span})
    for (const double steep : {2.0, 8.0})
      for (const double size : {-1.0, 1.0}) starts.push_back({middle, steep / span, 0.5, size, 0.0});
  return starts;
}

}  // namespace

double TaskLaw::loss(double parameters, double tokens, double samples) const {
  return E + A / std::pow(parameters, alpha) + B / std::pow(tokens, beta) + G / std::pow(samples, gamma);
}

double beta_pass(double a, double b, double samples) {
  // B(a, b + k) / B(a, b) = Gamma(b + k) Gamma(a + b) / (Gamma(b) Gamma(a + b + k)).
  const double log_fail =
      std::lgamma(b + samples) - std::lgamma(b) + std::lgamma(a + b) - std::lgamma(a + b + samples);
  return -std::expm1(std::min(0.0, log_fail));
}

double PassLaw::pass(double parameters, double tokens, double samples) const {
  return pass_of(loss.loss(parameters, tokens), theta, samples);
}

TaskLaw fit_task(const std::vector<LossPoint>& all) {
  PowerData d{.terms = 3};
  std::vector<LossPoint> points;
  for (const LossPoint& p : all) {
    if (p.task_loss <= 0) continue;
    points.push_back(p);
    d.x.insert(d.x.end(), {p.parameters, p.tokens, p.samples});
    d.y.push_back(p.task_loss);
    d.weight.push_back(1);
  }
  refuse_few_samples(points, "task_loss");
  const PowerSum s = fit_power_sum(d, FitLoss::squares).law;
  return {s.constant,          s.terms[0].coefficient, s.terms[1].coefficient, s.terms[0].exponent,
          s.terms[1].exponent, s.terms[2].coefficient, s.terms[2].exponent};
}

PassLaw fit_pass(const std::vector<LossPoint>& all) {
  std::vector<LossPoint> points;
  for (const LossPoint& p : all)
    if (p.pass >= 0) points.push_back(p);
  refuse_few_samples(points, "pass");
  PassLaw law;
  law.loss = fit_parametric(losses_of(all), {.resamples = 0}).law;
  std::vector<double> losses;
  for (const LossPoint& p : points) losses.push_back(law.loss.loss(p.parameters, p.tokens));
  const Objective squares = with_differences([&](std::span<const double> x) {
    std::array<double, 5> t{};
    std::copy(x.begin(), x.end(), t.begin());
    double sum = 0;
    for (size_t i = 0; i < points.size(); i++) {
      const double r = pass_of(losses[i], t, points[i].samples) - points[i].pass;
      sum += r * r;
    }
    // t2 is the share of tasks that can be solved at all: at most 1.
    const double over = std::max(0.0, t[2] - 1);
    return sum + 10 * over * over;
  });
  std::vector<Minimum> begun;
  for (std::vector<double>& start : theta_starts(losses))
    begun.push_back(minimise(squares, std::move(start), 40));
  std::stable_sort(begun.begin(), begun.end(),
                   [](const Minimum& a, const Minimum& b) { return a.value < b.value; });
  double best = INFINITY;
  for (size_t i = 0; i < 3; i++) {
    const Minimum m = minimise(squares, std::move(begun[i].x), 400);
    if (!(m.value < best)) continue;
    best = m.value;
    std::copy(m.x.begin(), m.x.end(), law.theta.begin());
  }
  return law;
}

double relative_error(const TaskLaw& law, const std::vector<LossPoint>& points) {
  double sum = 0;
  int n = 0;
  for (const LossPoint& p : points) {
    if (p.task_loss <= 0) continue;
    sum += std::abs(law.loss(p.parameters, p.tokens, p.samples) / p.task_loss - 1);
    n++;
  }
  return n ? sum / n : -1;
}

double relative_error(const PassLaw& law, const std::vector<LossPoint>& points) {
  double sum = 0;
  int n = 0;
  for (const LossPoint& p : points) {
    if (p.pass <= 0) continue;
    sum += std::abs(law.pass(p.parameters, p.tokens, p.samples) / p.pass - 1);
    n++;
  }
  return n ? sum / n : -1;
}

}  // namespace trireme
