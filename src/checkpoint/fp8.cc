#include "checkpoint/fp8.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/rounding.h"
#include "checkpoint/convert.h"

namespace trireme {
namespace {

const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> kValues = [] {
    std::array<float, 256> v{};
    for (int code = 0; code < 256; code++) v[size_t(code)] = from_fp8(Fp8Format::e4m3, uint8_t(code));
    return v;
  }();
  return kValues;
}

// An exponent alone (OCP Microscaling Formats 1.0, section 5.4.1): 255 is NaN.
float from_e8m0(uint8_t code) {
  return code == 255 ? std::nanf("") : std::ldexp(1.0f, int(code) - 127);
}

}  // namespace

void dequantise(std::string_view what, const Fp8Matrix& m, int64_t first, std::span<float> out) {
  require(m.in > 0 && m.rows > 0 && m.cols > 0, "blocks of scales have rows and columns");
  const std::array<float, 256>& value = e4m3_values();
  const int64_t across = div_up(m.in, m.cols);
  for (int64_t at = first, end = first + int64_t(out.size()); at < end;) {
    const int64_t row = at / m.in, col = at % m.in, block = row / m.rows * across + col / m.cols;
    const int64_t n = std::min({end - at, m.in - col, (col / m.cols + 1) * m.cols - col});
    float scale = 0;
    if (m.scales_are_e8m0)
      scale = from_e8m0(uint8_t(m.scales[block]));
    else
      convert_elements(what, DType::f32, &scale, m.scale_type, m.scales + block * size_of(m.scale_type), 1);
    if (!std::isfinite(scale))
      bad_request("{}: the scale of block {} is {}; right is a finite number", what, block, scale);
    for (int64_t i = 0; i < n; i++) out[size_t(at - first + i)] = value[size_t(m.codes[at + i])] * scale;
    at += n;
  }
}

}  // namespace trireme
