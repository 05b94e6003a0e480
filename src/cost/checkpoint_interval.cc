#include "cost/checkpoint_interval.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace trireme {

double daly_interval(double c, double m) {
  require(c >= 0 && m > 0, "Daly's interval of a negative cost, or without time between failures");
  if (c >= 2 * m) return m;
  return std::sqrt(2 * c * m) * (1 + std::sqrt(c / (2 * m)) / 3 + c / (18 * m)) - c;
}

double checkpoint_waste(double t, double c, double m, double r) {
  require(t > 0 && m > 0, "waste of no interval, or without time between failures");
  return 1 - t / (m * std::exp(r / m) * std::expm1((t + c) / m));
}

int64_t checkpoint_steps(double interval_s, double write_s, double step_s) {
  if (!(step_s > 0)) return 1;
  const double steps = std::max(interval_s, write_s) / step_s;
  return std::max<int64_t>(1, std::llround(std::min(steps, 1e12)));
}

double young_interval(double cost_s, double mtbf_s) {
  return std::sqrt(2 * cost_s * mtbf_s);
}

}  // namespace trireme
