// Chinchilla's law of loss, its best sizes, and its three fits (Hoffmann et al. 2022, arXiv 2203.15556): the
// envelope of training curves, parabolas at equal FLOPs, a parametric form. docs/scaling.md derives them.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cost/time_to_loss.h"
#include "scaling/points.h"
#include "scaling/power_sum.h"

namespace trireme {

// The best use of a compute budget.
struct Allocation {
  double parameters = 0, tokens = 0;
};
// N* = G (C / 6)^(beta / (alpha + beta)), G = (alpha A / (beta B))^(1 / (alpha + beta)); D* = C / (6 N*).
Allocation chinchilla_optimum(const ChinchillaLaw&, double flops);

struct BootstrapOptions {
  int64_t resamples = 400;
  uint64_t seed = 1;
  double level = 0.9;  // share of resamples within intervals
  std::function<void(int64_t)> done = {};
};

// Approach 3.
struct ParametricFit {
  ChinchillaLaw law;
  PowerFit fit;
  int points = 0;
  double spread = 0;                     // standard deviation of residuals of log loss
  std::vector<double> residuals;         // residuals of log loss
  std::vector<ChinchillaLaw> resampled;  // by a bootstrap over whole runs
  // By a bootstrap over residuals: the same sizes and tokens, as a ladder has them by design. Empty where one
  // run has several points, whose residuals are not independent.
  std::vector<ChinchillaLaw> redrawn;
  double level = 0.9;
  Interval of(const std::function<double(const ChinchillaLaw&)>&) const;
  // The interval of one further run: law (redrawn; without those, resampled) and residual are drawn together.
  Interval loss_of_run(double parameters, double tokens) const;
};
// Throws Error (request) if there are fewer than six points, or one size or number of tokens alone.
ParametricFit fit_parametric(const std::vector<LossPoint>&, const BootstrapOptions&);

// N* = exp(log_n) C^a, D* = C / (6 N*).
struct FrontierPoint {
  double flops = 0, parameters = 0, loss = 0;
};
struct FrontierFit {
  double log_n = 0, a = 0;
  Interval interval;  // interval of `a`
  std::vector<FrontierPoint> points;
  std::string none;  // why there is no such fit; empty = there is one
  double parameters(double flops) const;
};

// Approach 1: at each FLOPs the size with the lowest loss among curves (of one size; interpolated), where
// that is not the smallest or largest of those that got there. Three sizes around it give its logarithm by a
// parabola.
FrontierFit fit_envelope(const std::vector<LossPoint>&, const BootstrapOptions&);

// Approach 2. Runs within `tolerance` of one another in log FLOPs have one budget.
struct IsoFlop {
  double flops = 0;
  std::vector<LossPoint> points;
  double c0 = 0, c1 = 0, c2 = 0;  // loss = c0 + c1 x + c2 x^2, x = log N - middle
  double middle = 0;
  bool has_minimum = false;  // within the range of its sizes
  double best() const;       // N
  double loss_at(double parameters) const;
};
std::vector<IsoFlop> isoflops(const std::vector<LossPoint>&, double tolerance = 0.1);
FrontierFit fit_isoflops(const std::vector<LossPoint>&, const BootstrapOptions&);

}  // namespace trireme
