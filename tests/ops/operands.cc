#include <limits>

#include "base/rng.h"
#include "case.h"

namespace trireme::harness {

const Operand& Operands::operator[](std::string_view name) const {
  for (const Operand& o : list)
    if (o.name == name) return o;
  run_failed("the case has no operand '{}'", name);
}
Operand& Operands::operator[](std::string_view name) {
  return const_cast<Operand&>(static_cast<const Operands&>(*this)[name]);
}

Builder::Fill Builder::gaussian(std::string_view name, double scale, double mean) const {
  uint64_t key = rng_key(uint64_t(problem.size("seed", 1)), 0, name);
  return [=](int64_t i) { return mean + scale * normal(key, uint64_t(i)); };
}

Tensor Builder::matrix(Role role, std::string name, const Shape& shape, DType dtype, Fill fill) {
  int64_t pad = problem.size("pad", 0);
  std::array<int64_t, kMaxDims> stride{};
  int64_t n = 1;
  for (int i = shape.rank - 1; i >= 0; i--) {
    stride[size_t(i)] = n;
    n *= shape[i];
    if (i == shape.rank - 1) n += pad;
  }
  return strided(role, std::move(name), shape, stride, dtype, std::move(fill));
}
Tensor Builder::dense(Role role, std::string name, const Shape& shape, DType dtype, Fill fill) {
  return strided(role, std::move(name), shape, Tensor(nullptr, shape, dtype).stride, dtype, std::move(fill));
}
Tensor Builder::strided(Role role, std::string name, const Shape& shape, std::array<int64_t, kMaxDims> stride,
                        DType dtype, Fill fill) {
  constexpr int64_t kGuard = 128;  // bytes between operands, so that a vector store past the end is found
  at_ = (at_ + kGuard + 63) / 64 * 64 + problem.size("offset", 0) * size_of(dtype);
  Operand o{.name = name, .role = role};
  o.tensor = Tensor(base_ + at_, shape, dtype);
  o.tensor.stride = stride;
  int64_t last = 0;  // of the element that lies furthest
  for (int i = 0; i < shape.rank; i++) last += (shape[i] - 1) * stride[size_t(i)];
  at_ += (shape.numel() > 0 ? last + 1 : 0) * size_of(dtype) + kGuard;
  fills_.push_back(fill ? std::move(fill) : gaussian(name));
  operands_.list.push_back(std::move(o));
  return operands_.list.back().tensor;
}

}  // namespace trireme::harness
