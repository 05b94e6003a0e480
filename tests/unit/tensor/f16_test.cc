// f16 against the definition of IEEE 754 binary16: all 65,536 codes, and roundings of f32 to it.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tensor/dtype.h"

namespace trireme {
namespace {

TEST(F16, EveryCodeAgainstItsDefinition) {
  for (uint32_t u = 0; u < 65536; u++) {
    f16 h;
    h.bits = uint16_t(u);
    int exponent = int(u >> 10 & 31), mantissa = int(u & 0x3ff);
    float f = float(h);
    if (exponent == 31 && mantissa) {
      EXPECT_TRUE(std::isnan(f));
      EXPECT_EQ(f16(f).bits, u | 0x200);  // quiet
      continue;
    }
    double magnitude = exponent == 31  ? INFINITY
                       : exponent == 0 ? std::ldexp(mantissa, -24)
                                       : std::ldexp(1024 + mantissa, exponent - 25);
    EXPECT_EQ(double(f), u & 0x8000 ? -magnitude : magnitude);
    EXPECT_EQ(std::signbit(f), (u & 0x8000) != 0);
    EXPECT_EQ(f16(f).bits, u);
  }
}

TEST(F16, RoundsToNearestEven) {
  std::mt19937_64 rng(13);
  auto check = [](float f) {
    double a = std::fabs(double(f)), want;
    int e;
    std::frexp(a, &e);
    double unit = std::ldexp(1.0, std::max(e - 11, -24));  // distance of neighbouring f16 around a
    want = std::nearbyint(a / unit) * unit;                // default rounding: ties to even
    if (want > 65504) want = INFINITY;
    EXPECT_EQ(double(float(f16(f))), f < 0 ? -want : want) << f;
  };
  for (int i = 0; i < 200000; i++) {
    uint32_t exponent = 127 - 27 + uint32_t(rng() % 46), mantissa = uint32_t(rng()) & 0x7fffff;
    if (i % 3 == 0) mantissa &= 0x7ff000;  // ties
    check(std::bit_cast<float>(uint32_t(rng() & 1) << 31 | exponent << 23 | mantissa));
  }
  for (float f :
       {65519.996f, 65520.f, 65504.f, 0x1p-25f, 0x1.000002p-25f, 0x1p-14f, 0x1.ffcp-15f, 1e-45f, 0.f})
    check(f), check(-f);
}

}  // namespace
}  // namespace trireme
