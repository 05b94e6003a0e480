#include "checkpoint/convert.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace trireme {

namespace {

// Element i of memory that may be unaligned.
template <class T>
T load(const void* p, int64_t i) {
  T t;
  std::memcpy(&t, static_cast<const char*>(p) + i * int64_t(sizeof(T)), sizeof(T));
  return t;
}
template <class T>
void store(void* p, int64_t i, T t) {
  std::memcpy(static_cast<char*>(p) + i * int64_t(sizeof(T)), &t, sizeof(T));
}

bool is_float(DType t) {
  return t == DType::f32 || t == DType::bf16 || t == DType::f16;
}

template <class Load>
void convert_from(std::string_view what, DType to, void* dst, int64_t n, Load f32_at) {
  if (to == DType::f32) {
    for (int64_t i = 0; i < n; i++) store(dst, i, f32_at(i));
  } else if (to == DType::bf16) {
    for (int64_t i = 0; i < n; i++) store(dst, i, bf16(f32_at(i)));
  } else {
    for (int64_t i = 0; i < n; i++) {
      float f = f32_at(i);
      f16 h(f);
      if ((h.bits & 0x7fff) == 0x7c00 && std::isfinite(f))
        bad_request("{}: holds {}, and f16 holds at most 65504; bf16 or f32 would hold it", what, f);
      store(dst, i, h);
    }
  }
}

template <class T>
void transpose(void* dst, int64_t dst_stride, const void* src, int64_t src_stride, int64_t rows,
               int64_t cols) {
  constexpr int64_t kBlock = 32;
  for (int64_t r0 = 0; r0 < rows; r0 += kBlock)
    for (int64_t c0 = 0; c0 < cols; c0 += kBlock)
      for (int64_t c = c0; c < std::min(cols, c0 + kBlock); c++)
        for (int64_t r = r0; r < std::min(rows, r0 + kBlock); r++)
          store(dst, c * dst_stride + r, load<T>(src, r * src_stride + c));
}

}  // namespace

void transpose_elements(int64_t item, void* dst, int64_t dst_stride, const void* src, int64_t src_stride,
                        int64_t rows, int64_t cols) {
  switch (item) {
    case 1:
      return transpose<uint8_t>(dst, dst_stride, src, src_stride, rows, cols);
    case 2:
      return transpose<uint16_t>(dst, dst_stride, src, src_stride, rows, cols);
    case 4:
      return transpose<uint32_t>(dst, dst_stride, src, src_stride, rows, cols);
    case 8:
      return transpose<uint64_t>(dst, dst_stride, src, src_stride, rows, cols);
    default:
      require(false, "no element has this size");
  }
}

void convert_elements(std::string_view what, DType to, void* dst, DType from, const void* src, int64_t n) {
  if (to == from) {
    if (n > 0) std::memcpy(dst, src, size_t(n * size_of(to)));
    return;
  }
  if (!is_float(to) || !is_float(from))
    bad_request("{}: stored as {}, wanted as {}; only f32, bf16 and f16 convert into each other", what,
                name_of(from), name_of(to));
  if (from == DType::f32)
    convert_from(what, to, dst, n, [=](int64_t i) { return load<float>(src, i); });
  else if (from == DType::bf16)
    convert_from(what, to, dst, n, [=](int64_t i) { return float(load<bf16>(src, i)); });
  else
    convert_from(what, to, dst, n, [=](int64_t i) { return float(load<f16>(src, i)); });
}

}  // namespace trireme
