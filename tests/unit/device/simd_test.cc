// The vector helpers of device/cpu/simd-inl.h on every compiled target: exp, sigmoid, partial loads and
// stores.
#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../tests/unit/device/simd_test.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {

void exp_of(const float* x, float* y, int64_t n) {
  each_pack(n, [&](int64_t i, auto width, auto part) HWY_ATTR {
    VF e[width];
    for (int k = 0; k < width; k++) e[k] = load(x + i + k * kLanes, part);
    exp(e);
    for (int k = 0; k < width; k++) store(e[k], y + i + k * kLanes, part);
  });
}
void sigmoid_of(const float* x, float* s, float* rest, int64_t n) {
  each_vector(n, [&](int64_t i, auto part) HWY_ATTR {
    const Sigmoid v = sigmoid_of_exp(exp(hn::Neg(load(x + i, part))));
    store(v.s, s + i, part), store(v.rest, rest + i, part);
  });
}
void copy_of(const bf16* x, bf16* y, int64_t n) {
  each_vector(n, [&](int64_t i, auto part) HWY_ATTR { store(load(x + i, part), y + i, part); });
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels_testing.h"

namespace trireme::cpu {
HWY_EXPORT(exp_of);
HWY_EXPORT(sigmoid_of);
HWY_EXPORT(copy_of);
}  // namespace trireme::cpu

namespace trireme::testing {
namespace {

using cpu::HWY_NAMESPACE::kLanes;

double ulps(float got, double want) {
  const float rounded = float(want);
  const double ulp = double(std::nextafter(rounded, HUGE_VALF)) - double(rounded);
  return std::fabs(double(got) - want) / ulp;
}

// The bound that simd-inl.h states comes from all floats in the range; this is a sample of them.
TEST(SimdExp, IsWithin1Point1UlpOverItsRange) {
  constexpr int64_t n = 300007;
  Array<float> x({n}), y({n});
  for (int64_t i = 0; i < n; i++) {
    const double u = uniform(3, uint64_t(i));
    x[i] = i % 3 == 0   ? float(-87.33654 + u * (88.72283 + 87.33654))
           : i % 3 == 1 ? float(u - 0.5)
                        : float((u - 0.5) * 1e-4);
  }
  x[0] = -87.33654f, x[1] = 88.72283f, x[2] = 0;
  for_each_target([&] {
    using namespace cpu;
    HWY_DYNAMIC_DISPATCH(exp_of)(x.v.data(), y.v.data(), n);
    double worst = 0;
    for (int64_t i = 0; i < n; i++) worst = std::max(worst, ulps(y[i], std::exp(double(x[i]))));
    EXPECT_LE(worst, 1.1);
    EXPECT_EQ(y[2], 1);
  });
}

TEST(SimdExp, SaturatesAndKeepsNan) {
  const float inf = HUGE_VALF, nan = std::nanf("");
  Array<float> x({9}), y({9});
  x.v = {-inf, -3e38f, -87.4f, 88.73f, 3e38f, inf, nan, -nan, std::bit_cast<float>(0x7f800123u)};
  for_each_target([&] {
    using namespace cpu;
    HWY_DYNAMIC_DISPATCH(exp_of)(x.v.data(), y.v.data(), 9);
    for (int64_t i = 0; i < 3; i++) EXPECT_EQ(y[i], 0) << x[i];
    for (int64_t i = 3; i < 6; i++) EXPECT_EQ(y[i], inf) << x[i];
    for (int64_t i = 6; i < 9; i++) EXPECT_TRUE(std::isnan(y[i])) << i;
  });
}

TEST(SimdSigmoid, KeepsRelativeAccuracyInBothTails) {
  constexpr int64_t n = 20011;
  Array<float> x({n}), s({n}), rest({n});
  for (int64_t i = 0; i < n; i++) x[i] = float(-85 + 170 * uniform(4, uint64_t(i)));
  for_each_target([&] {
    using namespace cpu;
    HWY_DYNAMIC_DISPATCH(sigmoid_of)(x.v.data(), s.v.data(), rest.v.data(), n);
    for (int64_t i = 0; i < n; i++) {
      const double e = std::exp(-double(x[i]));
      ASSERT_NEAR(s[i] * (1 + e), 1, 4e-7) << x[i];
      ASSERT_NEAR(rest[i] * (1 + e) / e, 1, 4e-7) << x[i];
    }
  });
}

// Every length around two vectors, at every alignment: the right elements, and not one beside them.
TEST(SimdPartial, TouchesNothingBesideItsElements) {
  for_each_target([&] {
    using namespace cpu;
    for (int64_t n = 0; n < 2 * 16 + 3; n++)
      for (int64_t offset = 0; offset < 3; offset++) {
        std::vector<bf16> from(size_t(offset + n)), to(size_t(n + 40));
        for (int64_t i = 0; i < n; i++) from[size_t(offset + i)] = bf16(float(i + 1));
        for (bf16& v : to) v = bf16(-5.0f);
        HWY_DYNAMIC_DISPATCH(copy_of)(from.data() + offset, to.data() + 20, n);
        for (int64_t i = -20; i < n + 20; i++)
          ASSERT_EQ(float(to[size_t(20 + i)]), i >= 0 && i < n ? float(i + 1) : -5.0f) << n << " at " << i;
        std::vector<float> x(size_t(n), 0.0f), y(size_t(n + 40), -5.0f);
        HWY_DYNAMIC_DISPATCH(exp_of)(x.data(), y.data() + 20, n);
        for (int64_t i = -20; i < n + 20; i++)
          ASSERT_EQ(y[size_t(20 + i)], i >= 0 && i < n ? 1.0f : -5.0f) << n << " at " << i;
      }
  });
}

}  // namespace
}  // namespace trireme::testing
#endif  // HWY_ONCE
