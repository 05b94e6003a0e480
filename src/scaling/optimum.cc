#include "scaling/optimum.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace trireme {
namespace {

constexpr double kSmallest = 1e2;  // parameters

Choice choice_of(double n, const Budgets& b) {
  return {n, b.train / (6 * n), b.inference > 0 ? std::max(1.0, b.inference / (2 * n)) : 1.0};
}

// The largest N that both budgets allow: one sample, one token.
double largest(const Budgets& b) {
  const double by_training = b.train / 6;
  return b.inference > 0 ? std::min(by_training, b.inference / 2) : by_training;
}

void refuse_budgets(const Budgets& b) {
  if (!(largest(b) > kSmallest))
    bad_request(
        "budgets of {:g} FLOPs of training and {:g} per token served leave models below {:g} parameters; "
        "expected larger ones",
        b.train, b.inference, kSmallest);
}

}  // namespace

Choice best_by_loss(const TaskLaw& law, const Budgets& b) {
  refuse_budgets(b);
  const auto slope = [&](double log_n) {
    const double n = std::exp(log_n);
    double s = -law.alpha * law.A * std::pow(n, -law.alpha) +
               law.beta * law.B * std::pow(b.train / (6 * n), -law.beta);
    if (b.inference > 0) s += law.gamma * law.G * std::pow(b.inference / (2 * n), -law.gamma);
    return s;
  };
  double low = std::log(kSmallest);
  double high = std::log(largest(b));
  for (int i = 0; i < 200; i++) {
    const double middle = 0.5 * (low + high);
    (slope(middle) > 0 ? high : low) = middle;
  }
  Choice c = choice_of(std::exp(0.5 * (low + high)), b);
  c.value = law.loss(c.parameters, c.tokens, c.samples);
  return c;
}

double saturated_size(const TaskLaw& law, double inference) {
  const double g = law.gamma * law.G * std::pow(2 / inference, law.gamma);
  return std::pow(law.alpha * law.A / g, 1 / (law.alpha + law.gamma));
}

Choice best_by_pass(const PassLaw& law, const Budgets& b) {
  refuse_budgets(b);
  const auto at = [&](double log_n) {
    Choice c = choice_of(std::exp(log_n), b);
    c.value = law.pass(c.parameters, c.tokens, c.samples);
    return c;
  };
  const double from = std::log(kSmallest);
  const double to = std::log(largest(b));
  constexpr int kScan = 600;
  int best = 0;
  for (int i = 0; i <= kScan; i++)
    if (at(from + (to - from) * i / kScan).value > at(from + (to - from) * best / kScan).value) best = i;
  double low = from + (to - from) * std::max(0, best - 1) / kScan;
  double high = from + (to - from) * std::min(kScan, best + 1) / kScan;
  const double golden = 0.5 * (std::sqrt(5.0) - 1);
  for (int i = 0; i < 60; i++) {
    const double left = high - golden * (high - low);
    const double right = low + golden * (high - low);
    (at(left).value < at(right).value ? low : high) = at(left).value < at(right).value ? left : right;
  }
  return at(0.5 * (low + high));
}

Choice brute_force(const std::function<double(double, double, double)>& cost, const Budgets& b, int steps) {
  refuse_budgets(b);
  const double from = std::log10(kSmallest);
  const int n = int(std::ceil((std::log10(largest(b)) - from) * steps));
  Choice best{.value = INFINITY};
  for (int i = 0; i <= n; i++) {
    const double log_n = from + (std::log10(largest(b)) - from) * i / n;
    Choice c = choice_of(std::pow(10, log_n), b);
    c.value = cost(c.parameters, c.tokens, c.samples);
    if (c.value < best.value) best = c;
  }
  return best;
}

std::vector<SharePoint> share_frontier(const std::function<Choice(const Budgets&)>& best, double total,
                                       double served, int points) {
  std::vector<SharePoint> all;
  for (int i = 1; i <= points; i++) {
    SharePoint p;
    p.share = double(i) / (points + 1);
    p.budgets = {(1 - p.share) * total, p.share * total / served};
    if (largest(p.budgets) <= kSmallest) continue;
    p.choice = best(p.budgets);
    all.push_back(p);
  }
  return all;
}

}  // namespace trireme
