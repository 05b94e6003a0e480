#include "generate/decode_rule.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/error.h"

namespace trireme {
namespace {

std::vector<double> renormalised(std::vector<double> p) {
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& v : p) v /= sum;
  return p;
}

}  // namespace

std::vector<double> temper(std::span<const double> p, double temperature) {
  require(temperature > 0 && !p.empty(), "a temperature of 0 has no distribution");
  const double largest = *std::max_element(p.begin(), p.end());
  std::vector<double> q;
  for (double v : p) q.push_back(v > 0 ? std::exp(std::log(v / largest) / temperature) : 0);
  return renormalised(std::move(q));
}

std::vector<double> keep_top_k(std::span<const double> p, int64_t k) {
  std::vector<double> q(p.begin(), p.end());
  if (k <= 0 || k >= int64_t(q.size())) return q;
  std::vector<double> sorted = q;
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<>());
  const double least = sorted[size_t(k - 1)];
  for (double& v : q)
    if (v < least) v = 0;
  return renormalised(std::move(q));
}

std::vector<double> keep_top_p(std::span<const double> p, double top_p) {
  std::vector<double> q(p.begin(), p.end());
  if (top_p >= 1) return q;
  std::vector<size_t> order(q.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return q[a] > q[b]; });
  double before = 0;
  for (size_t i = 0; i < order.size(); i++) {
    const double v = q[order[i]];
    if (i > 0 && before >= top_p) q[order[i]] = 0;
    before += v;
  }
  return renormalised(std::move(q));
}

std::vector<double> decoded(std::span<const double> p, double temperature, int64_t top_k, double top_p) {
  return keep_top_p(keep_top_k(temper(p, temperature), top_k), top_p);
}

}  // namespace trireme
