#include "cost/time_to_loss.h"

#include <cmath>
#include <limits>

namespace trireme {
namespace {

constexpr double kE = 1.8172, kA = 482.01, kB = 2085.43, kAlpha = 0.3478, kBeta = 0.3658;

}  // namespace

double chinchilla_loss(double parameters, double tokens) {
  return kE + kA / std::pow(parameters, kAlpha) + kB / std::pow(tokens, kBeta);
}

double chinchilla_tokens(double parameters, double loss) {
  const double left = loss - kE - kA / std::pow(parameters, kAlpha);
  if (left <= 0) return std::numeric_limits<double>::infinity();
  return std::pow(kB / left, 1 / kBeta);
}

double critical_batch(double loss) {
  constexpr double kScale = 2.1e8, kPower = 4.8;
  return kScale * std::pow(loss, -kPower);
}

double tokens_to_loss(double parameters, double loss, double batch_tokens) {
  return chinchilla_tokens(parameters, loss) * (1 + batch_tokens / critical_batch(loss));
}

}  // namespace trireme
