// 8-bit floats on the host, as OCP's "OFP8" specification 1.0 has them (torch.float8_e4m3fn, float8_e5m2).
//
//         exponent  mantissa  bias  largest  smallest normal  smallest   infinities   NaN
//   e4m3  4 bits    3 bits    7     448      2^-6             2^-9       none         0x7f, 0xff
//   e5m2  5 bits    2 bits    15    57344    2^-14            2^-16      0x7c, 0xfc   0x7d.. 0x7f, 0xfd..
//
// To f32 every code is exact. From f32: to nearest, ties to even; a finite number beyond the largest becomes
// the largest (it saturates), so what is finite stays finite. What is not finite stays so: NaN is NaN, and an
// infinity is one where the format has it, else NaN. All constexpr, so that CUDA's kernels are these
// functions too.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

#include "tensor/dtype.h"

namespace trireme {

enum class Fp8Format : uint8_t { e4m3, e5m2 };

constexpr float from_fp8(Fp8Format format, uint8_t code) {
  const bool e4m3 = format == Fp8Format::e4m3;
  const uint32_t sign = uint32_t(code & 0x80) << 24, a = code & 0x7f;
  if (a > (e4m3 ? 0x7eu : 0x7cu)) return std::bit_cast<float>(sign | 0x7fc00000);
  if (!e4m3 && a == 0x7c) return std::bit_cast<float>(sign | 0x7f800000);
  if (a >= (e4m3 ? 8u : 4u))
    return std::bit_cast<float>(sign | (e4m3 ? (120u << 23) + (a << 20) : (112u << 23) + (a << 21)));
  const float magnitude = float(a) * (e4m3 ? 0x1p-9f : 0x1p-16f);
  return sign ? -magnitude : magnitude;
}

// a: the bits of a finite |f|. Multiples of the smallest number are added to one whose last bit that is: the
// sum rounds as wanted.
constexpr uint8_t magnitude_to_fp8(Fp8Format format, uint32_t a) {
  const bool e4m3 = format == Fp8Format::e4m3;
  const uint32_t largest = e4m3 ? 0x43e00000 : 0x47600000, normal = e4m3 ? 0x3c800000 : 0x38800000;
  const uint32_t rebias = e4m3 ? 120u << 23 : 112u << 23, dropped = e4m3 ? 20 : 21;
  const float steps = e4m3 ? 0x1p14f : 0x1p7f;
  a = std::min(a, largest);
  const uint32_t usual = (a - rebias + ((1u << (dropped - 1)) - 1) + (a >> dropped & 1)) >> dropped;
  const uint32_t small =
      std::bit_cast<uint32_t>(std::bit_cast<float>(a) + steps) - std::bit_cast<uint32_t>(steps);
  return uint8_t(a >= normal ? usual : small);
}

constexpr uint8_t to_fp8(Fp8Format format, float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f), a = u & 0x7fffffff;
  const uint8_t sign = uint8_t(u >> 24 & 0x80);
  constexpr uint32_t kInfinity = 0x7f800000;
  if (a < kInfinity) return sign | magnitude_to_fp8(format, a);
  return sign | (format == Fp8Format::e5m2 && a == kInfinity ? 0x7c : 0x7f);
}

// to_fp8(x * per_scale), but that a finite number whose multiple is beyond f32 saturates as others do.
constexpr uint8_t scaled_to_fp8(Fp8Format format, float x, float per_scale) {
  if ((std::bit_cast<uint32_t>(x) & 0x7fffffff) >= 0x7f800000) return to_fp8(format, x);
  const uint32_t u = std::bit_cast<uint32_t>(x * per_scale);
  return uint8_t(u >> 24 & 0x80) | magnitude_to_fp8(format, u & 0x7fffffff);
}

// The scale of numbers up to `largest`: the power of two 2^e with largest <= 2^(e - margin) times the
// format's largest number, and no smaller one. number = code * scale. 1 where all numbers are 0; between
// 2^-126 and 2^126.
constexpr float fp8_scale(Fp8Format format, float largest, int margin = 0) {
  if (!(largest > 0)) return 1;
  const uint32_t u = std::bit_cast<uint32_t>(largest);
  const int exponent = std::max(int(u >> 23), 1) - 127;
  const bool above = (u & 0x7fffff) > 0x600000;  // 1.75, as 448 and 57344 have it
  const int power = exponent + above - (format == Fp8Format::e4m3 ? 8 : 15) + margin;
  return std::bit_cast<float>(uint32_t(std::clamp(power, -126, 126) + 127) << 23);
}

}  // namespace trireme
