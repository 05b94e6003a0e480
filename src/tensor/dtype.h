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

template <class T>
inline constexpr DType dtype_of = DType::u8;
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<int64_t> = DType::i64;
template <>
inline constexpr DType dtype_of<uint16_t> = DType::u16;

}  // namespace trireme
