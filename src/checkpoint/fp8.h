// Weights stored as 8-bit floats with one scale a block (DeepSeek-V3, 2412.19437, section 3.3.2, and its
// published folders): w[i, j] = e4m3(code[i, j]) * scale_inv[i / rows, j / cols]. Read only: what is written
// is bf16, f16 or f32.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tensor/fp8.h"

namespace trireme {

// A matrix [?, in] of codes, and its scales [?, ceil(in / cols)] of type f32, bf16, f16 or E8M0, a block of
// rows x cols each, the last ones cut off by the matrix's edges. Neither needs alignment.
struct Fp8Matrix {
  const std::byte* codes = nullptr;
  const std::byte* scales = nullptr;
  DType scale_type = DType::f32;
  bool scales_are_e8m0 =
      false;  // then a scale is one byte e, the value 2^(e - 127), and scale_type is unused
  int64_t in = 0;
  int64_t rows = 0, cols = 0;  // of a block
};

// Elements from the row-major index `first` on: the product rounded once to f32, as the published conversion
// does. A scale that is not finite is a bad request; `what` names the tensor in it.
void dequantise(std::string_view what, const Fp8Matrix&, int64_t first, std::span<float> out);

}  // namespace trireme
