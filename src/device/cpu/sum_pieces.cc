// Traffic: every source is read once and every destination written once; between them the elements stay in
// registers, 4 vectors at a time.
#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/sum_pieces.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/f16-inl.h"
#include "device/cpu/simd-inl.h"
#include "device/cpu/sum_pieces.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

HWY_INLINE VF larger(VF a, VF b) {
  return hn::IfThenElse(hn::Or(hn::Gt(b, a), hn::IsNaN(b)), b, a);
}

// S: number of sources where it is known (2 is the common one), else 0.
template <int S, bool kMax, class T>
HWY_INLINE void fold(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n) {
  const size_t sources = S > 0 ? size_t(S) : src.size();
  each_pack(n, [&](int64_t i, auto width, auto part) HWY_ATTR {
    constexpr int W = decltype(width)::value;
    VF sum[W];
    for (int w = 0; w < W; w++) sum[w] = load(reinterpret_cast<const T*>(src[0]) + i + w * kLanes, part);
    for (size_t s = 1; s < sources; s++)
      for (int w = 0; w < W; w++) {
        const VF x = load(reinterpret_cast<const T*>(src[s]) + i + w * kLanes, part);
        sum[w] = kMax ? larger(sum[w], x) : hn::Add(sum[w], x);
      }
    for (std::byte* d : dst)
      for (int w = 0; w < W; w++) store(sum[w], reinterpret_cast<T*>(d) + i + w * kLanes, part);
  });
}

template <bool kMax, class T>
void fold_any(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n) {
  src.size() == 2 ? fold<2, kMax, T>(dst, src, n) : fold<0, kMax, T>(dst, src, n);
}

template <class T>
void fold_of(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n, bool max) {
  max ? fold_any<true, T>(dst, src, n) : fold_any<false, T>(dst, src, n);
}

}  // namespace

void fold_floats(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n, DType t,
                 bool max) {
  if (t == DType::f32) fold_of<float>(dst, src, n, max);
  if (t == DType::bf16) fold_of<bf16>(dst, src, n, max);
  if (t == DType::f16) fold_of<f16>(dst, src, n, max);
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/error.h"

namespace trireme::cpu {
HWY_EXPORT(fold_floats);

namespace {

// Types of scalars and counters: few elements, so the compiler's own loops do.
template <class T, class Add>
void fold_plain(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n,
                const Add& add) {
  for (int64_t i = 0; i < n; i++) {
    T sum = reinterpret_cast<const T*>(src[0])[i];
    for (size_t s = 1; s < src.size(); s++) sum = add(sum, reinterpret_cast<const T*>(src[s])[i]);
    for (std::byte* d : dst) reinterpret_cast<T*>(d)[i] = sum;
  }
}

template <class T>
void fold_integers(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n,
                   bool max) {
  using U = std::make_unsigned_t<T>;
  if (max)
    fold_plain<T>(dst, src, n, [](T a, T b) { return a > b ? a : b; });
  else
    fold_plain<T>(dst, src, n, [](T a, T b) { return T(U(a) + U(b)); });
}

void fold_pieces(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n, DType t,
                 bool max) {
  require(!src.empty(), "a reduction of no pieces");
  switch (t) {
    case DType::f32:
    case DType::bf16:
    case DType::f16:
      return HWY_DYNAMIC_DISPATCH(fold_floats)(dst, src, n, t, max);
    case DType::f64:
      if (max)
        return fold_plain<double>(dst, src, n, [](double a, double b) { return b > a || b != b ? b : a; });
      return fold_plain<double>(dst, src, n, [](double a, double b) { return a + b; });
    case DType::i32:
      return fold_integers<int32_t>(dst, src, n, max);
    case DType::i64:
      return fold_integers<int64_t>(dst, src, n, max);
    case DType::u16:
    case DType::u8:
      break;
  }
  require(false, "a reduction of a type that nothing adds");
}

}  // namespace

void sum_pieces(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n, DType t) {
  fold_pieces(dst, src, n, t, false);
}
void max_pieces(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n, DType t) {
  fold_pieces(dst, src, n, t, true);
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
