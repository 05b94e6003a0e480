#include "tune/loss_terms.h"

#include <cmath>

#include "base/error.h"
#include "generate/decode_rule.h"

namespace trireme {

LossTerms loss_terms(std::span<const double> p, std::span<const double> q, double temperature) {
  require(p.size() == q.size() && temperature > 0, "loss terms of distributions that differ in length");
  double kept = 0;
  for (size_t i = 0; i < p.size(); i++) kept += q[i] > 0 ? p[i] : 0;
  std::vector<double> inside(p.size());
  for (size_t i = 0; i < p.size(); i++) inside[i] = q[i] > 0 ? p[i] / kept : 0;
  double powers = 0;
  for (double v : inside)
    if (v > 0) powers += std::exp(std::log(v) / temperature);
  const std::vector<double> tempered = temper(inside, temperature);
  LossTerms t{.compression = -std::log(kept), .reshaping = -temperature * std::log(powers)};
  for (size_t i = 0; i < q.size(); i++) {
    if (q[i] <= 0) continue;
    t.anchor += temperature * q[i] * std::log(q[i] / tempered[i]);
    t.constant -= temperature * q[i] * std::log(q[i]);
  }
  return t;
}

double cross_entropy_of(std::span<const double> p, std::span<const double> q) {
  double sum = 0;
  for (size_t i = 0; i < q.size(); i++)
    if (q[i] > 0) sum -= q[i] * std::log(p[i]);
  return sum;
}

std::vector<double> logit_gradient(std::span<const double> p, std::span<const double> q) {
  std::vector<double> g(p.begin(), p.end());
  for (size_t i = 0; i < q.size(); i++) g[i] -= q[i];
  return g;
}

}  // namespace trireme
