// Shapes and boxes of tensors: pure integers. Dims are listed outer to inner; a rank-0 shape has one element.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace trireme {

inline constexpr int kMaxDims = 4;

struct Shape {
  std::array<int64_t, kMaxDims> dim{};
  int rank = 0;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);  // at most kMaxDims, each >= 0
  int64_t operator[](int i) const { return dim[size_t(i)]; }
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank; i++) n *= dim[size_t(i)];
    return n;
  }
  bool operator==(const Shape&) const = default;
};
std::string to_string(const Shape&);  // "[2, 3]"

// A box in a global tensor: elements offset[d] <= i[d] < offset[d] + extent[d].
struct Slice {
  Shape offset, extent;
  bool operator==(const Slice&) const = default;
};

// A half-open range of row-major elements of a box.
struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

}  // namespace trireme
