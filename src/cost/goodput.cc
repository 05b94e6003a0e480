#include "cost/goodput.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "cost/checkpoint_interval.h"

namespace trireme {
namespace {

// That a Poisson number of this mean is at least s.
double at_least(double mean, int64_t s) {
  constexpr double kNormal =
      600;  // exp(-mean) is no double much further on; the normal tail is as good there
  if (mean > kNormal) return std::erfc((double(s) - 0.5 - mean) / std::sqrt(2 * mean)) / 2;
  double term = std::exp(-mean), below = 0;
  for (int64_t k = 0; k < s; k++) below += term, term *= mean / double(k + 1);
  return std::clamp(1 - below, 0.0, 1.0);
}

Goodput with_spares(const Reliability& r, int64_t devices, double save_s, int64_t spares) {
  Goodput g{.mtbf_s = r.mtbf_device_s / double(devices), .spares = spares};
  g.interval_s = std::max(daly_interval(save_s, g.mtbf_s), r.write_s);
  g.waits = at_least(r.repair_s / g.mtbf_s, spares);
  g.share = std::max(0.0, 1 - checkpoint_waste(g.interval_s, save_s, g.mtbf_s,
                                               r.restart_s + r.write_s + g.waits * r.repair_s));
  g.paid = devices + spares * r.devices_per_machine;
  return g;
}

}  // namespace

Goodput goodput(const Reliability& r, int64_t devices, double save_s) {
  require(devices > 0 && save_s > 0 && r.mtbf_device_s > 0, "goodput of no devices, or without failures");
  if (r.spares >= 0) return with_spares(r, devices, save_s, r.spares);
  // More spares cost, and help less and less: the first minimum of paid devices per useful second is the only
  // one that matters; beyond a mean of repairs it is past.
  constexpr double kMostMean = 1e15, kSpread = 12;
  const double mean = std::min(kMostMean, r.repair_s * double(devices) / r.mtbf_device_s);
  const double spread = std::sqrt(mean);
  // Every number where the spread is small, beyond that a 64th of it apart; with fewer all failures wait.
  const auto first = int64_t(std::max(1.0, mean - kSpread * spread)),
             most = int64_t(mean + kSpread * spread + kSpread),
             step = std::max<int64_t>(1, int64_t(spread / 64));
  Goodput best = with_spares(r, devices, save_s, 0);
  const auto price = [](const Goodput& g) { return double(g.paid) / std::max(g.share, 1e-300); };
  for (int64_t s = first; s <= most; s += step) {
    const Goodput g = with_spares(r, devices, save_s, s);
    if (price(g) < price(best)) best = g;
  }
  return best;
}

}  // namespace trireme
