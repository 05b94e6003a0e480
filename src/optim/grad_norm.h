// The norm of all gradients as an order-independent sum: no grouping by stage, shard or rank changes a bit.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/comm_set.h"
#include "device/device.h"
#include "tensor/arena.h"
#include "tensor/flat_state.h"

namespace trireme {

// Sum of non-negative doubles that does not depend on their order (DESIGN.md section 4): each is scaled by
// one power of two, taken from the largest, cut to an integer, and added as 128 bits. With n values the
// absolute error is below n * max * 2^-100 for n < 2^20. Any non-finite value makes the sum NaN.
double order_independent_sum(std::span<const double> values);

// Its parts, for values on several ranks: the largest over all of them, each rank's integer sum cut into
// limbs, the limbs added up, and the sum they stand for.
inline constexpr double kNonfinite = -1;            // in place of a largest value
double largest_of(std::span<const double> values);  // or kNonfinite
using Limbs = std::array<int64_t, 3>;  // 43 bits each, lowest first: 2^20 ranks cannot overflow one
Limbs limbs_of(std::span<const double> values, double largest);
double sum_of(const Limbs&, double largest);

class GradNorm {
 public:
  // Books one f64 per block of kFlatBlock elements of each unit that this rank answers for; where ranks of tp
  // hold some parameters alike (Param::answers), two more for each parameter, on all of them.
  GradNorm(const ParamSet&, const FlatState&, Arena&);  // of the state the places alone
  // Square root of the sum of squares of all gradients, each element once; blocks are counted from the start
  // of each unit, so they are the same under every ZeRO stage. world: all ranks that hold gradients, null for
  // one alone.
  double compute(Device&, const ParamSet&, const FlatState&, Communicator* world, Stream);
  // This rank's part of it, on the host until the next call: sums of squares, block by block. Empty where the
  // device has no data.
  std::span<const double> squares(Device&, const ParamSet&, const FlatState&, Stream);

 private:
  int64_t add(Device&, const ParamSet&, const FlatState&, const Unit&, Range of_unit, int64_t at, Stream);
  int64_t add_answered(Device&, const ParamSet&, const FlatState&, const Unit&, Range of_unit, int64_t at,
                       Stream);
  Owned sums_;
  std::vector<double> host_;
  std::vector<Limbs> gathered_;
};

}  // namespace trireme
