#include "cost/ring_waits.h"

#include <algorithm>

namespace trireme {
namespace {

double excess(double link, double compute) {
  return std::max(0.0, link - compute);
}

}  // namespace

double ring_forward_waits(int64_t n, double core, double hop) {
  return n <= 1 ? 0 : double(n - 1) * excess(hop, core / double(n));
}

double ring_backward_waits(int64_t n, double core, double hop, double sum_hop) {
  if (n <= 1) return 0;
  const double round = core / double(n);
  return excess(hop, round) + double(n - 2) * excess(hop + sum_hop, round) + excess(sum_hop, round) + sum_hop;
}

}  // namespace trireme
