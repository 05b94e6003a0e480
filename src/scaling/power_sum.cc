#include "scaling/power_sum.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "scaling/lbfgs.h"

namespace trireme {
namespace {

constexpr double kDelta = 1e-3;
constexpr size_t kMostTerms = 3;
constexpr size_t kDescents = 12;
constexpr std::array kExponents = {0.08, 0.15, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4};

// The data in logarithms, centred. A law is a point (log A_j centred ..., a_j ..., log E).
class PowerProblem {
 public:
  PowerProblem(const PowerData& d, FitLoss loss) : d_(d), loss_(loss), log_x_(d.x.size()), center_(d.terms) {
    double all = 0;
    for (size_t i = 0; i < d.rows(); i++) {
      all += d.weight[i];
      for (size_t j = 0; j < d.terms; j++) {
        log_x_[i * d.terms + j] = std::log(d.x[i * d.terms + j]);
        center_[j] += d.weight[i] * log_x_[i * d.terms + j];
      }
    }
    for (double& c : center_) c /= all;
    for (size_t i = 0; i < log_x_.size(); i++) log_x_[i] -= center_[i % d.terms];
    for (const double y : d.y) log_y_.push_back(std::log(y));
  }

  double operator()(std::span<const double> p, std::span<double> gradient) const {
    const size_t m = d_.terms;
    std::fill(gradient.begin(), gradient.end(), 0.0);
    double sum = 0;
    std::array<double, kMostTerms + 1> t{};
    for (size_t i = 0; i < d_.rows(); i++) {
      if (d_.weight[i] == 0) continue;
      const double* x = &log_x_[i * m];
      double most = p[2 * m];
      for (size_t j = 0; j < m; j++) {
        t[j] = p[j] - p[m + j] * x[j];
        most = std::max(most, t[j]);
      }
      t[m] = p[2 * m];
      double total = 0;
      for (size_t j = 0; j <= m; j++) total += t[j] = std::exp(t[j] - most);
      double by_sum = 0;  // the derivative of the row's loss by log y
      if (loss_ == FitLoss::huber_of_log) {
        const double r = most + std::log(total) - log_y_[i];
        const double size = std::abs(r);
        sum += d_.weight[i] * (size <= kDelta ? 0.5 * r * r : kDelta * (size - 0.5 * kDelta));
        by_sum = d_.weight[i] * std::clamp(r, -kDelta, kDelta);
      } else {
        const double y = total * std::exp(most);
        const double r = y - d_.y[i];
        sum += d_.weight[i] * r * r;
        by_sum = d_.weight[i] * 2 * r * y;
      }
      for (size_t j = 0; j <= m; j++) {
        const double g = by_sum * t[j] / total;
        gradient[j < m ? j : 2 * m] += g;
        if (j < m) gradient[m + j] -= g * x[j];
      }
    }
    return sum;
  }

  double value(const std::vector<double>& p) const {
    std::vector<double> unused(p.size());
    return (*this)(p, unused);
  }

  std::vector<double> point_of(const PowerSum& law) const {
    std::vector<double> p(2 * d_.terms + 1);
    for (size_t j = 0; j < d_.terms; j++) {
      p[j] = std::log(law.terms[j].coefficient) - law.terms[j].exponent * center_[j];
      p[d_.terms + j] = law.terms[j].exponent;
    }
    p.back() = std::log(law.constant);
    return p;
  }
  PowerSum law_of(const std::vector<double>& p) const {
    PowerSum law{.constant = std::exp(p.back())};
    for (size_t j = 0; j < d_.terms; j++)
      law.terms.push_back({std::exp(p[j] + p[d_.terms + j] * center_[j]), p[d_.terms + j]});
    return law;
  }

  // E and A_j of these exponents by least squares of relative residuals; what would be negative is small.
  std::vector<double> start_of(std::span<const double> exponents) const {
    const size_t m = d_.terms;
    std::vector<double> x(d_.rows() * (m + 1));
    std::vector<double> y(d_.rows(), 1.0);
    for (size_t i = 0; i < d_.rows(); i++) {
      const double scale = 1 / d_.y[i];
      for (size_t j = 0; j < m; j++) x[i * (m + 1) + j] = scale * std::exp(-exponents[j] * log_x_[i * m + j]);
      x[i * (m + 1) + m] = scale;
    }
    std::vector<double> c = least_squares(x, y, d_.weight, m + 1);
    const double middle = std::exp(log_y_[log_y_.size() / 2]);
    if (c.empty()) c.assign(m + 1, middle / double(m + 1));
    std::vector<double> p(2 * m + 1);
    for (size_t j = 0; j < m; j++) {
      p[j] = std::log(std::max(c[j], 0.01 * middle));
      p[m + j] = exponents[j];
    }
    p.back() = std::log(std::max(c[m], 0.01 * middle));
    return p;
  }

 private:
  const PowerData& d_;
  FitLoss loss_;
  std::vector<double> log_x_, center_, log_y_;
};

// The grid's starts, best first.
std::vector<std::vector<double>> starts_of(const PowerProblem& problem, size_t terms) {
  size_t all = 1;
  for (size_t j = 0; j < terms; j++) all *= kExponents.size();
  std::vector<std::pair<double, std::vector<double>>> ranked;
  for (size_t index = 0; index < all; index++) {
    std::vector<double> exponents;
    for (size_t j = 0, rest = index; j < terms; j++, rest /= kExponents.size())
      exponents.push_back(kExponents[rest % kExponents.size()]);
    std::vector<double> p = problem.start_of(exponents);
    const double value = problem.value(p);
    if (std::isfinite(value)) ranked.emplace_back(value, std::move(p));
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](auto& a, auto& b) { return a.first < b.first; });
  std::vector<std::vector<double>> starts;
  for (auto& r : ranked) starts.push_back(std::move(r.second));
  return starts;
}

}  // namespace

double PowerSum::at(std::span<const double> x) const {
  double y = constant;
  for (size_t j = 0; j < terms.size(); j++) y += terms[j].coefficient * std::pow(x[j], -terms[j].exponent);
  return y;
}

PowerFit fit_power_sum(const PowerData& d, FitLoss loss, const PowerSum* near, bool few_starts) {
  require(d.terms >= 1 && d.terms <= kMostTerms && d.rows() > 0, "fit_power_sum: terms or rows");
  const PowerProblem problem(d, loss);
  std::vector<std::vector<double>> starts;
  if (near) starts.push_back(problem.point_of(*near));
  if (!few_starts || !near) {
    std::vector<std::vector<double>> grid = starts_of(problem, d.terms);
    grid.resize(std::min(grid.size(), kDescents));
    for (auto& p : grid) starts.push_back(std::move(p));
  } else {
    std::vector<double> exponents;
    for (const PowerTerm& t : near->terms) exponents.push_back(t.exponent);
    starts.push_back(problem.start_of(exponents));
  }
  PowerFit best{.objective = INFINITY};
  for (std::vector<double>& start : starts) {
    const Minimum m = minimise([&](auto x, auto g) { return problem(x, g); }, std::move(start));
    best.starts++;
    if (!(m.value < best.objective)) continue;
    best.objective = m.value;
    best.law = problem.law_of(m.x);
    best.converged = m.converged;
  }
  return best;
}

std::vector<double> resampled(std::span<const int> run_of_row, uint64_t seed, int64_t index) {
  const int runs = run_of_row.empty() ? 0 : *std::max_element(run_of_row.begin(), run_of_row.end()) + 1;
  std::vector<double> times(size_t(runs), 0.0);
  const uint64_t key = rng_key(seed, uint64_t(index), "scaling/bootstrap");
  for (int i = 0; i < runs; i++) times[below(key, uint64_t(i), uint64_t(runs))] += 1;
  std::vector<double> weight;
  for (const int run : run_of_row) weight.push_back(times[size_t(run)]);
  return weight;
}

double percentile(std::vector<double> values, double share) {
  require(!values.empty(), "percentile: no values");
  std::sort(values.begin(), values.end());
  const double at = share * double(values.size() - 1);
  const size_t low = size_t(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - double(low)) * (values[high] - values[low]);
}

Interval central(const std::vector<double>& values, double level) {
  return {percentile(values, (1 - level) / 2), percentile(values, (1 + level) / 2)};
}

}  // namespace trireme
