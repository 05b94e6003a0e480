#include "optim/grad_norm.h"

#include <algorithm>
#include <cmath>

namespace trireme {
namespace {
int64_t blocks_of(const Param& p) {
  return (p.numel() + kFlatBlock - 1) / kFlatBlock;
}
}  // namespace

double order_independent_sum(std::span<const double> values) {
  double largest = 0;
  for (double v : values) {
    if (!std::isfinite(v)) return std::nan("");
    largest = std::max(largest, v);
  }
  if (largest == 0) return 0;
  int exponent;
  std::frexp(largest, &exponent);  // largest < 2^exponent
  int shift = 100 - exponent;      // terms below 2^100: room for 2^27 of them
  __int128 sum = 0;
  for (double v : values) sum += __int128(std::ldexp(v, shift));
  return std::ldexp(double(sum), -shift);
}

GradNorm::GradNorm(const ParamSet& set, Arena& arena) {
  int64_t n = 0;
  for (const Param& p : set.params) n += blocks_of(p);
  sums_ = Owned(arena, Bucket::scratch, {n}, DType::f64);
  host_.resize(size_t(n));
}

double GradNorm::compute(Device& device, const ParamSet& set, Stream stream) {
  int64_t at = 0;
  for (const Param& p : set.params) {
    device.kernels().run(
        SquareSumsArgs{.x = p.grad.view({p.numel()}), .sums = sums_->narrow(0, at, blocks_of(p))}, stream);
    at += blocks_of(p);
  }
  device.download(host_.data(), *sums_);
  return std::sqrt(order_independent_sum(host_));
}

}  // namespace trireme
