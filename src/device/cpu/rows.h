// Matrices as kernels walk them: a typed pointer and a row stride.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "tensor/tensor.h"

namespace trireme::cpu {

// Row i of a [N, C] operand; null when the operand is absent.
template <class T>
struct Rows {
  T* data;
  int64_t stride;  // in elements
  T* operator[](int64_t i) const { return data + i * stride; }
  explicit operator bool() const { return data != nullptr; }
};
template <class T>
Rows<T> rows_of(const Tensor& t) {
  if (!t) return {nullptr, 0};
  return {t.as<std::remove_const_t<T>>(), t.shape.rank >= 2 ? t.stride[size_t(t.shape.rank - 2)] : t.numel()};
}

// Fewer elements than this are not worth a second thread: waking one costs about 5 us, in which a core moves
// some 200 KB.
inline constexpr int64_t kGrainElements = 16384;
inline int64_t row_grain(int64_t cols) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(cols, 1));
}

}  // namespace trireme::cpu
