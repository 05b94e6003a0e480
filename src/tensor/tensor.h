// A view of memory: pointer, shape, strides, type. It owns nothing (arena.h does).
#pragma once
#include <array>
#include <cstddef>

#include "base/error.h"
#include "mesh/shape.h"
#include "tensor/dtype.h"

namespace trireme {

struct Tensor {
  std::byte* data = nullptr;  // on meta: an address inside a virtual arena, never dereferenced
  Shape shape;
  std::array<int64_t, kMaxDims> stride{};  // in elements
  DType dtype = DType::f32;

  Tensor() = default;
  Tensor(void* p, const Shape& s, DType t) : data(static_cast<std::byte*>(p)), shape(s), dtype(t) {
    int64_t n = 1;
    for (int i = s.rank - 1; i >= 0; i--) stride[size_t(i)] = n, n *= s[i];
  }

  bool operator==(const Tensor&) const = default;
  explicit operator bool() const { return data != nullptr; }  // absent optional operands are null
  int64_t numel() const { return shape.numel(); }
  int64_t bytes() const { return numel() * size_of(dtype); }  // of the elements, strides aside
  int64_t rows() const { return shape.rank == 0 ? 1 : shape[0]; }
  int64_t cols() const { return rows() == 0 ? 0 : numel() / rows(); }
  bool contiguous() const {
    int64_t n = 1;
    for (int i = shape.rank - 1; i >= 0; i--) {
      if (shape[i] != 1 && stride[size_t(i)] != n) return false;
      n *= shape[i];
    }
    return true;
  }

  template <class T>
  T* as() const {
    require(dtype_of<T> == dtype, "a tensor was read as another element type");
    return reinterpret_cast<T*>(data);
  }

  // The same elements under another shape; contiguous only.
  Tensor view(const Shape& s) const {
    require(contiguous() && s.numel() == numel(), "view() needs a contiguous tensor of as many elements");
    return Tensor(data, s, dtype);
  }
  // Elements [begin, begin + n) of dim d.
  Tensor narrow(int d, int64_t begin, int64_t n) const {
    require(d < shape.rank && begin >= 0 && n >= 0 && begin + n <= shape[d], "narrow() out of range");
    Tensor t = *this;
    t.data += begin * stride[size_t(d)] * size_of(dtype);
    t.shape.dim[size_t(d)] = n;
    return t;
  }
};

}  // namespace trireme
