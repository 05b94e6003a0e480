#include "optim/spikes.h"

#include <algorithm>
#include <cmath>

namespace trireme {
namespace {

// Standard deviation / median absolute deviation, for normally distributed values.
constexpr double kDeviation = 1.4826;
// Least deviation, as a share of the median: a window of almost equal values makes no outlier of a tiny
// change.
constexpr double kLeast = 0.005;

double median_of(std::vector<double>& values) {
  const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Score {
  double z = 0, median = 0;
};
Score score_of(double x, std::vector<double> window) {
  const double median = median_of(window);
  for (double& v : window) v = std::abs(v - median);
  const double deviation = std::max(kDeviation * median_of(window), kLeast * std::abs(median));
  return {deviation > 0 ? (x - median) / deviation : 0, median};
}

void push(std::vector<double>& window, double x, int64_t most) {
  if (int64_t(window.size()) == most) window.erase(window.begin());
  window.push_back(x);
}

}  // namespace

SpikeVerdict SpikeDetector::judge(double loss, double norm) const {
  SpikeVerdict v{.finite = std::isfinite(loss) && std::isfinite(norm)};
  if (!active()) return v;
  const bool may = state_.in_a_row < options_.limit;
  const bool known = int64_t(state_.losses.size()) >= options_.window / 2;
  if (known) {
    const Score of_loss = score_of(loss, state_.losses);
    const Score of_norm = score_of(norm, state_.norms);
    v.loss_z = of_loss.z;
    v.loss_median = of_loss.median;
    v.norm_z = of_norm.z;
    v.norm_median = of_norm.median;
  }
  const bool outlier = v.finite && known && (v.loss_z >= options_.z || v.norm_z >= options_.z);
  v.skip = may && (!v.finite || outlier);
  return v;
}

void SpikeDetector::updated(double loss, double norm) {
  if (!active()) return;
  // The limit was reached: the run has come to other values, and its old window says nothing.
  if (state_.in_a_row >= options_.limit) {
    state_.losses.clear();
    state_.norms.clear();
  }
  push(state_.losses, loss, options_.window);
  push(state_.norms, norm, options_.window);
  state_.in_a_row = 0;
}

void SpikeDetector::skipped() {
  state_.in_a_row++;
  state_.skipped++;
}

bool SpikeDetector::plausible(const SpikeState& s) const {
  const auto finite = [](const std::vector<double>& window) {
    return std::all_of(window.begin(), window.end(), [](double x) { return std::isfinite(x); });
  };
  return s.losses.size() == s.norms.size() && finite(s.losses) && finite(s.norms) && s.in_a_row >= 0 &&
         s.skipped >= s.in_a_row;
}

void SpikeDetector::restore(SpikeState s) {
  const int64_t beyond = std::max<int64_t>(0, int64_t(s.losses.size()) - (active() ? options_.window : 0));
  s.losses.erase(s.losses.begin(), s.losses.begin() + beyond);
  s.norms.erase(s.norms.begin(), s.norms.begin() + beyond);
  state_ = std::move(s);
}

}  // namespace trireme
