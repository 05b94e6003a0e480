// Best learning rates, best batches and the critical batch size as power laws of size and tokens.
#pragma once
#include <string>
#include <vector>

#include "scaling/law.h"

namespace trireme {

// y = exp(log_c) N^n D^d. An exponent that the runs do not identify (one size alone) is 0 and not known.
struct RateLaw {
  double log_c = 0, n = 0, d = 0;
  bool knows_n = false, knows_d = false;
  Interval n_interval, d_interval;
  int cells = 0;     // (N, D) with a best value between others
  std::string none;  // why there is none; empty = there is one
  double at(double parameters, double tokens) const;
};

// In each cell of equal N and D (and batch), a parabola of the loss over the logarithm of the rate has the
// best rate at its vertex. Vertices outside of the tried rates are dropped. The others give the law.
// Intervals: parabolas of resampled residuals.
RateLaw fit_best_lr(const std::vector<LossPoint>&, const BootstrapOptions&);
// The same of tokens per step, each at its best tried rate.
RateLaw fit_best_batch(const std::vector<LossPoint>&, const BootstrapOptions&);

// Critical batch (McCandlish et al. 2018, arXiv 1812.06162): D tokens in batches of b are worth
// D / (1 + b / B_crit) tokens of small batches. With Chinchilla's law that is
//   L = E + A/N^alpha + B/(D / (1 + b / B_crit))^beta,  B_crit = exp(log_c) N^n D^d,
// fitted jointly, each batch at its best tried rate.
struct CriticalBatch {
  RateLaw law;
  ChinchillaLaw loss;  // the law at small batches
};
CriticalBatch fit_critical_batch(const std::vector<LossPoint>&, const BootstrapOptions&);

}  // namespace trireme
