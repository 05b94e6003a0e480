// Laws of the form  y = E + sum_j A_j / x_j^a_j  and their fit. Chinchilla's law has two terms (parameters,
// tokens); T2's has a third one (samples).
//
// Chinchilla's approach 3 (Hoffmann et al. 2022, arXiv 2203.15556, section 3.3) minimises
//   sum_i Huber(log y_i - LSE(log E, log A_j - a_j log x_ij)),  delta = 1e-3,
// by L-BFGS from many starts. Besiroglu et al. (2024, arXiv 2404.10102) found that the published constants
// come from an optimiser that stopped early: the mean of the losses is far below its tolerance. The published
// intervals are too narrow. So this fit takes the sum, ends only when no digit changes, and bootstraps whole
// runs.
//
// The logarithms of x_j are centred: A_j and a_j are nearly independent then. A start needs exponents alone,
// for E and A_j follow from them by linear least squares (variable projection).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trireme {

struct PowerTerm {
  double coefficient = 0;
  double exponent = 0;
};
struct PowerSum {
  double constant = 0;  // E
  std::vector<PowerTerm> terms;
  double at(std::span<const double> x) const;
};

enum class FitLoss : uint8_t { huber_of_log, squares };

struct PowerData {
  size_t terms = 0;
  std::vector<double> x;       // [rows, terms], above 0
  std::vector<double> y;       // [rows], above 0
  std::vector<double> weight;  // [rows]; a bootstrap's multiplicities
  size_t rows() const { return y.size(); }
};

struct PowerFit {
  PowerSum law;
  double objective = 0;  // the sum
  int starts = 0;        // that were descended from
  bool converged = false;
};

// near: starts from this law in addition to the grid; with few_starts from it and the best of the grid alone
// (the resamples of a bootstrap).
PowerFit fit_power_sum(const PowerData&, FitLoss, const PowerSum* near = nullptr, bool few_starts = false);

// Rows of `run` are resampled together: points of one training curve are not independent.
// Returns multiplicities of rows, [rows], of resample `index`.
std::vector<double> resampled(std::span<const int> run_of_row, uint64_t seed, int64_t index);

// A percentile of values, linear between neighbours. Requires: values are not empty.
double percentile(std::vector<double> values, double share);

struct Interval {
  double low = 0, high = 0;
};
// The central share of them.
Interval central(const std::vector<double>& values, double level);

}  // namespace trireme
