// What check() of ops is made of (ops_check*.cc).
//
// What all ops share: [N, C] operands are rank 2 with stride 1 in the last dim and a free row stride (at
// least C); vectors may have any shape of the right number of elements but are contiguous. Messages are built
// only when a check fails, so that a step allocates nothing.
#pragma once
#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "tensor/tensor.h"

namespace trireme {

// Element type, shape and strides, or "absent".
std::string described(const Tensor&);

// An empty tensor needs no memory behind it.
inline bool present(const Tensor& t) {
  return t.data != nullptr || (t.shape.rank > 0 && t.numel() == 0);
}

// Of one op, by its name.
class Checker {
 public:
  explicit Checker(std::string_view op) : op_(op) {}

  [[noreturn]] void fail(std::string_view name, const Tensor& t, std::string_view must) const;
  void that(bool ok, std::string_view name, const Tensor& t, std::string_view must) const {
    if (!ok) [[unlikely]]
      fail(name, t, must);
  }
  // The compute type: f32, bf16 or f16 (attention also takes f64).
  DType compute_type(std::string_view name, const Tensor& t, bool f64 = false) const {
    that(present(t), name, t, "present");
    that(t.dtype == DType::f32 || t.dtype == DType::bf16 || t.dtype == DType::f16 ||
             (f64 && t.dtype == DType::f64),
         name, t, f64 ? "f32, bf16, f16 or f64" : "f32, bf16 or f16");
    return t.dtype;
  }
  void type(std::string_view name, const Tensor& t, DType want) const {
    that(present(t), name, t, "present");
    if (t.dtype != want) [[unlikely]]
      fail(name, t, name_of(want));
  }
  void type(std::string_view name, const Tensor& t, DType want, DType or_that) const {
    that(present(t), name, t, "present");
    if (t.dtype != want && t.dtype != or_that) [[unlikely]]
      fail(name, t, fmt::format("{} or {}", name_of(want), name_of(or_that)));
  }
  void shape(std::string_view name, const Tensor& t, std::initializer_list<int64_t> dims) const {
    bool ok = t.shape.rank == int(dims.size());
    for (int i = 0; ok && i < t.shape.rank; i++) ok = t.shape[i] == dims.begin()[i];
    if (!ok) [[unlikely]]
      fail(name, t, "of shape " + to_string(Shape(dims)));
  }
  void shape(std::string_view name, const Tensor& t, const Shape& want) const {
    if (!(t.shape == want)) [[unlikely]]
      fail(name, t, "of shape " + to_string(want));
  }
  // Stride 1 in the last dim; outer dims free, but elements must not overlap.
  void unit_columns(std::string_view name, const Tensor& t) const {
    int last = t.shape.rank - 1;
    bool ok = last < 0 || t.shape[last] <= 1 || t.stride[size_t(last)] == 1;
    for (int i = 0; ok && i < last; i++) ok = t.shape[i] <= 1 || t.stride[size_t(i)] >= t.shape[last];
    that(ok, name, t, "of stride 1 in its last dim and of outer strides at least as long as its rows");
  }
  void matrix(std::string_view name, const Tensor& t, DType want) const {
    type(name, t, want);
    that(t.shape.rank == 2, name, t, "a matrix (rank 2)");
    unit_columns(name, t);
  }
  void matrix(std::string_view name, const Tensor& t, int64_t rows, int64_t cols, DType want) const {
    matrix(name, t, want);
    shape(name, t, {rows, cols});
  }
  void vector(std::string_view name, const Tensor& t, int64_t n, DType want) const {
    type(name, t, want);
    if (t.numel() != n || !t.contiguous()) [[unlikely]]
      fail(name, t, fmt::format("contiguous, of {} elements", n));
  }
  void like(std::string_view name, const Tensor& t, std::string_view other, const Tensor& o) const {
    type(name, t, o.dtype);
    if (t.shape != o.shape) [[unlikely]]
      fail(name, t, fmt::format("like '{}', which is {}", other, described(o)));
  }

 private:
  std::string_view op_;
};

}  // namespace trireme
