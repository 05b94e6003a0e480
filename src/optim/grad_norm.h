// The norm of all gradients as an order-independent sum: no grouping by stage, shard or rank changes a bit.
#pragma once
#include <span>
#include <vector>

#include "device/device.h"
#include "tensor/arena.h"
#include "tensor/param.h"

namespace trireme {

// Sum of non-negative doubles that does not depend on their order (DESIGN.md section 4): each is scaled by
// one power of two, taken from the largest, cut to an integer, and added as 128 bits. With n values the
// absolute error is below n * max * 2^-100 for n < 2^20. Any non-finite value makes the sum NaN.
double order_independent_sum(std::span<const double> values);

class GradNorm {
 public:
  // Books one f64 per block of kFlatBlock elements of each parameter.
  GradNorm(const ParamSet&, Arena&);
  // Square root of the sum of squares of all gradients, blocks counted from the start of each parameter.
  double compute(Device&, const ParamSet&, Stream);

 private:
  Owned sums_;
  std::vector<double> host_;
};

}  // namespace trireme
