// Operands and launches for the tests of single CPU kernels: what the op harness cannot say.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/rng.h"
#include "device/cpu/launch.h"
#include "hwy/targets.h"

namespace trireme::testing {

// Elements of one tensor, and the tensor.
template <class T>
struct Array {
  std::vector<T> v;
  Tensor t;
  explicit Array(const Shape& shape, double fill = 0)
      : v(size_t(shape.numel()), T(fill)), t(v.data(), shape, dtype_of<T>) {}
  Array(const Array&) = delete;
  T& operator[](int64_t i) { return v[size_t(i)]; }
  Array& normal(std::string_view name, double scale = 1, double mean = 0) {
    uint64_t key = rng_key(11, 0, name);
    for (size_t i = 0; i < v.size(); i++) v[i] = T(float(mean + scale * trireme::normal(key, i)));
    return *this;
  }
  double at(int64_t i) const { return double(float(v[size_t(i)])); }
  bool same_bits(const Array& o) const {
    return v.size() == o.v.size() &&
           (v.empty() || std::memcmp(v.data(), o.v.data(), v.size() * sizeof(T)) == 0);
  }
};

template <class Args>
void run(const Args& args, int threads = 1) {
  check(args);
  const cpu::Context ctx{.threads = threads};
  const int64_t bytes = cpu::scratch_bytes(args, ctx);
  std::vector<uint64_t> scratch(size_t(bytes + 7) / 8, ~uint64_t(0));
  cpu::launch(args, bytes ? Tensor(scratch.data(), {bytes}, DType::u8) : Tensor(), ctx);
}

// The message of the Error that f throws; "" if none.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::run);
    return e.what();
  }
  return "";
}

// Calls f for each instruction set that the kernels are compiled for and this machine has: AVX2, AVX-512,
// NEON. Kernels dispatch to it meanwhile.
template <class F>
void for_each_target(F&& f) {
  const int64_t all = hwy::SupportedTargets();
  for (int64_t target : {int64_t(HWY_AVX2), int64_t(HWY_AVX3), int64_t(HWY_NEON)}) {
    if (!(all & target)) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    f();
  }
  hwy::GetChosenTarget().Update(all);
}

}  // namespace trireme::testing
