// Conversions of element types between files and host memory: exact where the target can hold the value, else
// to nearest, ties to even.
#pragma once
#include <cstdint>
#include <string_view>

#include "tensor/dtype.h"

namespace trireme {

// n elements; neither side needs alignment. Equal types are copied bit by bit; f32, bf16 and f16 convert into
// each other; any other pair is a bad request, and so is a finite value beyond the largest f16 (65504).
// `what` names the file and the tensor in messages.
void convert_elements(std::string_view what, DType to, void* dst, DType from, const void* src, int64_t n);

// dst[c * dst_stride + r] = src[r * src_stride + c] for rows x cols elements of `item` bytes (1, 2, 4 or 8),
// strides in elements; bit by bit, in square blocks so that both sides stay in cache; neither side needs
// alignment.
void transpose_elements(int64_t item, void* dst, int64_t dst_stride, const void* src, int64_t src_stride,
                        int64_t rows, int64_t cols);

}  // namespace trireme
