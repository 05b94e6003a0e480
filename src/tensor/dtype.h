// Element types and their conversions on the host.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace trireme {

enum class DType : uint8_t { f64, f32, bf16, f16, i32, i64, u16, u8 };

int64_t size_of(DType);                   // bytes per element
std::string_view name_of(DType);          // "f32"
DType dtype_from_name(std::string_view);  // bad_request on an unknown name

// bfloat16: the upper half of an f32. Conversion from f32 rounds to nearest, ties to even; NaN stays NaN.
struct bf16 {
  uint16_t bits;
  bf16() = default;
  explicit bf16(float f) {
    uint32_t u = std::bit_cast<uint32_t>(f);
    if (std::isnan(f))
      bits = uint16_t(u >> 16 | 0x40);
    else
      bits = uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};
static_assert(sizeof(bf16) == 2);

// IEEE 754 binary16: 5 bits of exponent, 10 of mantissa. Largest 65504, smallest normal 2^-14, smallest
// 2^-24. To f32 is exact; from f32 rounds once to nearest, ties to even, and from 65520 on gives infinity.
// NaN stays NaN, made quiet, its payload's upper bits kept: bit for bit what the processors' instructions do.
struct f16 {
  uint16_t bits;
  f16() = default;
  explicit f16(float f) {
    uint32_t u = std::bit_cast<uint32_t>(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000)
      bits = uint16_t(sign | 0x7e00 | (a >> 13 & 0x3ff));
    else if (a >= 0x477ff000)  // 65520
      bits = uint16_t(sign | 0x7c00);
    else if (a >= 0x38800000)  // 2^-14
      bits = uint16_t(sign | (a - (112u << 23) + 0xfff + (a >> 13 & 1)) >> 13);
    else  // a multiple of 2^-24, which is the last bit of floats around 0.5
      bits = uint16_t(sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(a) + 0.5f) - 0x3f000000));
  }
  explicit operator float() const {
    uint32_t sign = uint32_t(bits & 0x8000) << 16, a = bits & 0x7fff;
    if (a > 0x7c00) return std::bit_cast<float>(sign | 0x7fc00000 | a << 13);
    if (a == 0x7c00) return std::bit_cast<float>(sign | 0x7f800000);
    if (a >= 0x400) return std::bit_cast<float>(sign | ((112u << 23) + (a << 13)));
    float magnitude = float(a) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
};
static_assert(sizeof(f16) == 2);

template <class T>
inline constexpr DType dtype_of = DType::u8;
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<f16> = DType::f16;
template <>
inline constexpr DType dtype_of<int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<int64_t> = DType::i64;
template <>
inline constexpr DType dtype_of<uint16_t> = DType::u16;

}  // namespace trireme
