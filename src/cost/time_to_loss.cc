#include "cost/time_to_loss.h"

#include <cmath>
#include <limits>

namespace trireme {
double ChinchillaLaw::loss(double parameters, double tokens) const {
  return E + A / std::pow(parameters, alpha) + B / std::pow(tokens, beta);
}

double chinchilla_loss(double parameters, double tokens) {
  return ChinchillaLaw{}.loss(parameters, tokens);
}

double chinchilla_tokens(double parameters, double loss) {
  const ChinchillaLaw law;
  const double left = loss - law.E - law.A / std::pow(parameters, law.alpha);
  if (left <= 0) return std::numeric_limits<double>::infinity();
  return std::pow(law.B / left, 1 / law.beta);
}

double critical_batch(double loss) {
  constexpr double kScale = 2.1e8, kPower = 4.8;
  return kScale * std::pow(loss, -kPower);
}

double tokens_to_loss(double parameters, double loss, double batch_tokens) {
  return chinchilla_tokens(parameters, loss) * (1 + batch_tokens / critical_batch(loss));
}

}  // namespace trireme
