#include "scaling/lbfgs.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "base/error.h"

namespace trireme {
namespace {

constexpr size_t kMemory = 12;  // pairs of steps and gradient changes
constexpr double kDecrease = 1e-4;
constexpr double kCurvature = 0.9;
constexpr int kSearches = 40;
constexpr double kFlat = 1e-13;
constexpr int kFlatIterations = 10;

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); i++) sum += a[i] * b[i];
  return sum;
}

// f along x + t d.
struct Ray {
  const Objective& f;
  const std::vector<double>& x;
  const std::vector<double>& d;
  std::vector<double> at;
  std::vector<double> gradient;
  double t = 0;
  double value = 0;
  double slope = 0;

  void go(double step) {
    t = step;
    for (size_t i = 0; i < x.size(); i++) at[i] = x[i] + step * d[i];
    value = f(at, gradient);
    slope = dot(gradient, d);
    if (!std::isfinite(value) || !std::isfinite(slope)) value = INFINITY;
  }
};

// A step with the strong Wolfe conditions between `low` and `high`; `low` satisfies the decrease.
bool zoom(Ray& r, double f0, double slope0, double low, double f_low, double high) {
  for (int i = 0; i < kSearches; i++) {
    const double width = high - low;
    r.go(low + 0.5 * width);
    if (r.value > f0 + kDecrease * r.t * slope0 || r.value >= f_low) {
      high = r.t;
    } else {
      if (std::abs(r.slope) <= -kCurvature * slope0) return true;
      if (r.slope * width >= 0) high = low;
      low = r.t;
      f_low = r.value;
    }
    if (std::abs(high - low) <= 1e-16 * std::max(1.0, std::abs(low))) break;
  }
  // The best point that satisfies the decrease.
  if (low <= 0) return false;
  r.go(low);
  return r.value < f0;
}

bool line_search(Ray& r, double f0, double slope0, double first) {
  double last = 0;
  double f_last = f0;
  double step = first;
  for (int i = 0; i < kSearches; i++) {
    r.go(step);
    if (r.value > f0 + kDecrease * step * slope0 || (i > 0 && r.value >= f_last))
      return zoom(r, f0, slope0, last, f_last, step);
    if (std::abs(r.slope) <= -kCurvature * slope0) return true;
    if (r.slope >= 0) return zoom(r, f0, slope0, step, r.value, last);
    last = step;
    f_last = r.value;
    step *= 2.5;
  }
  return r.value < f0;
}

struct Pair {
  std::vector<double> s, y;
  double rho = 0;
};

// The direction -H g (Nocedal, Wright 2006, algorithm 7.4).
std::vector<double> direction(const std::deque<Pair>& pairs, const std::vector<double>& g) {
  std::vector<double> q = g;
  std::vector<double> a(pairs.size());
  for (size_t i = pairs.size(); i-- > 0;) {
    a[i] = pairs[i].rho * dot(pairs[i].s, q);
    for (size_t j = 0; j < q.size(); j++) q[j] -= a[i] * pairs[i].y[j];
  }
  double scale = 1 / std::max(1e-300, std::sqrt(dot(g, g)));
  if (!pairs.empty()) scale = 1 / (pairs.back().rho * dot(pairs.back().y, pairs.back().y));
  for (double& v : q) v *= scale;
  for (size_t i = 0; i < pairs.size(); i++) {
    const double b = pairs[i].rho * dot(pairs[i].y, q);
    for (size_t j = 0; j < q.size(); j++) q[j] += (a[i] - b) * pairs[i].s[j];
  }
  for (double& v : q) v = -v;
  return q;
}

void remember(std::deque<Pair>& pairs, const Ray& r, const std::vector<double>& x,
              std::span<const double> g) {
  Pair p;
  for (size_t i = 0; i < x.size(); i++) {
    p.s.push_back(r.at[i] - x[i]);
    p.y.push_back(r.gradient[i] - g[i]);
  }
  const double sy = dot(p.s, p.y);
  if (sy <= 1e-300) return;
  p.rho = 1 / sy;
  pairs.push_back(std::move(p));
  if (pairs.size() > kMemory) pairs.pop_front();
}

}  // namespace

Minimum minimise(const Objective& f, std::vector<double> start, int most_iterations) {
  Minimum m{.x = std::move(start)};
  std::vector<double> g(m.x.size());
  m.value = f(m.x, g);
  if (!std::isfinite(m.value)) return m;
  std::deque<Pair> pairs;
  int flat = 0;
  for (; m.iterations < most_iterations; m.iterations++) {
    std::vector<double> d = direction(pairs, g);
    double slope = dot(g, d);
    if (slope >= 0 || !std::isfinite(slope)) {  // rounding has spoilt the memory
      pairs.clear();
      d = direction(pairs, g);
      slope = dot(g, d);
    }
    if (slope > -1e-300) {
      m.converged = true;
      break;
    }
    Ray ray{f, m.x, d, m.x, g};
    if (!line_search(ray, m.value, slope, pairs.empty() ? 0.1 : 1.0)) {
      if (pairs.empty()) {  // no descent along the gradient itself: the precision of f is reached
        m.converged = true;
        break;
      }
      pairs.clear();
      continue;
    }
    remember(pairs, ray, m.x, g);
    flat = m.value - ray.value <= kFlat * std::abs(m.value) ? flat + 1 : 0;
    m.x = ray.at;
    g = ray.gradient;
    m.value = ray.value;
    if (flat >= kFlatIterations || m.value == 0) {
      m.converged = true;
      break;
    }
  }
  return m;
}

Objective with_differences(std::function<double(std::span<const double>)> f) {
  return [f = std::move(f)](std::span<const double> x, std::span<double> gradient) {
    std::vector<double> at(x.begin(), x.end());
    for (size_t i = 0; i < at.size(); i++) {
      const double h = 6e-6 * std::max(1.0, std::abs(x[i]));
      at[i] = x[i] + h;
      const double up = f(at);
      at[i] = x[i] - h;
      gradient[i] = (up - f(at)) / (2 * h);
      at[i] = x[i];
    }
    return f(x);
  };
}

std::vector<double> least_squares(std::span<const double> x, std::span<const double> y,
                                  std::span<const double> weights, size_t columns) {
  const size_t n = columns;
  require(x.size() == y.size() * n && weights.size() == y.size(), "least_squares: sizes");
  std::vector<double> m(n * (n + 1));  // the normal matrix and, in the last column, its right side
  for (size_t i = 0; i < y.size(); i++)
    for (size_t j = 0; j < n; j++) {
      const double w = weights[i] * x[i * n + j];
      for (size_t k = 0; k < n; k++) m[j * (n + 1) + k] += w * x[i * n + k];
      m[j * (n + 1) + n] += w * y[i];
    }
  // Columns differ by orders of magnitude: a pivot is compared with its own diagonal.
  std::vector<double> diagonal(n);
  for (size_t j = 0; j < n; j++) diagonal[j] = m[j * (n + 1) + j];
  for (size_t j = 0; j < n; j++) {
    if (!(m[j * (n + 1) + j] > 1e-14 * diagonal[j])) return {};
    for (size_t i = 0; i < n; i++) {
      if (i == j) continue;
      const double times = m[i * (n + 1) + j] / m[j * (n + 1) + j];
      for (size_t k = j; k <= n; k++) m[i * (n + 1) + k] -= times * m[j * (n + 1) + k];
    }
  }
  std::vector<double> c(n);
  for (size_t j = 0; j < n; j++) c[j] = m[j * (n + 1) + n] / m[j * (n + 1) + j];
  return c;
}

}  // namespace trireme
