// The loss of self-distillation at one position, divided as the SSD paper divides it (PAPERS 1.4).
#pragma once
#include <span>
#include <vector>

namespace trireme {

// The target q is `decoded` from a frozen model: its support S, the tokens with q > 0, is fixed while the
// model p learns. With K = sum of p over S, p_S = p / K on S, T the temperature of sampling:
//   L = -sum over S of q log p
//     = -log K + (1 - T) H_{1/T}(p_S) + T KL(q || temper(p_S, T)) + T H(q)
// H_a is Renyi's entropy, (1 - T) H_{1/T}(p_S) = -T log sum of p_S^(1/T). All in nats.
struct LossTerms {
  double compression = 0;  // -log K: mass outside of the support
  double reshaping = 0;    // (1 - T) H_{1/T}
  double anchor = 0;       // T KL(q || temper(p_S, T))
  double constant = 0;     // T H(q)
  double sum() const { return compression + reshaping + anchor + constant; }
};
LossTerms loss_terms(std::span<const double> p, std::span<const double> q, double temperature);

// Cross-entropy -sum of q log p over the support of q, in nats.
double cross_entropy_of(std::span<const double> p, std::span<const double> q);

// Gradient of the cross-entropy by the logits of p: p - q.
std::vector<double> logit_gradient(std::span<const double> p, std::span<const double> q);

}  // namespace trireme
