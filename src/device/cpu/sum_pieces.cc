// Traffic: every source is read once and every destination written once; between them the elements stay in
// registers, 4 vectors at a time. What is far larger than the last cache is written past it: an all_reduce of
// 64 MiB over two threads takes 0.6 of the time then, one of 16 MiB (32 MiB of buffers in 32 MiB of cache)
// 1.2; a copy spares reading the lines that it overwrites, and gains from some MiB on (measured: 8 MiB, half
// the time; 2 MiB, the same).
#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/sum_pieces.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/f16-inl.h"
#include "device/cpu/simd-inl.h"
#include "device/cpu/sum_pieces.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

HWY_INLINE VF larger(VF a, VF b) {
  return hn::IfThenElse(hn::Or(hn::Gt(b, a), hn::IsNaN(b)), b, a);
}

// Past the caches. The line is neither read first nor kept; on our own vectors' alignment.
HWY_INLINE void stream(VF v, float* p) {
  hn::Stream(v, DF(), p);
}
HWY_INLINE void stream(VF v, bf16* p) {
  hn::Stream(to_bf16(v), DH(), &p->bits);
}
HWY_INLINE void stream(VF v, f16* p) {
  hn::Stream(to_f16(v), DH(), &p->bits);
}
// Half vectors of 16-bit elements fill a register of at least 16 bytes on all targets but the smallest.
template <class T>
inline constexpr bool kStreams = kLanes* int64_t(sizeof(T)) >= 16;

// Elements [begin, end). S: number of sources where it is known (2 is the common one), else 0. kPast: end -
// begin is a multiple of 4 vectors, and every destination is aligned there.
template <int S, bool kMax, bool kPast, class T>
HWY_INLINE void fold(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t begin,
                     int64_t end) {
  const size_t sources = S > 0 ? size_t(S) : src.size();
  each_pack(end - begin, [&](int64_t at, auto width, auto part) HWY_ATTR {
    constexpr int W = decltype(width)::value;
    const int64_t i = begin + at;
    VF sum[W];
    for (int w = 0; w < W; w++) sum[w] = load(reinterpret_cast<const T*>(src[0]) + i + w * kLanes, part);
    for (size_t s = 1; s < sources; s++)
      for (int w = 0; w < W; w++) {
        const VF x = load(reinterpret_cast<const T*>(src[s]) + i + w * kLanes, part);
        sum[w] = kMax ? larger(sum[w], x) : hn::Add(sum[w], x);
      }
    for (std::byte* d : dst)
      for (int w = 0; w < W; w++) {
        T* to = reinterpret_cast<T*>(d) + i + w * kLanes;
        if constexpr (kPast && W == 4)
          stream(sum[w], to);
        else
          store(sum[w], to, part);
      }
  });
}

template <int S, bool kMax, class T>
void fold_past(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n) {
  int64_t head = 0, body = 0;
  if constexpr (kStreams<T>) {
    const size_t line = 64, off = reinterpret_cast<uintptr_t>(dst[0]) % line;
    bool alike = off % sizeof(T) == 0;
    for (std::byte* d : dst) alike = alike && reinterpret_cast<uintptr_t>(d) % line == off;
    if (alike) {
      head = std::min(n, int64_t((line - off) % line / sizeof(T)));
      body = (n - head) / (4 * kLanes) * (4 * kLanes);
    }
  }
  fold<S, kMax, false, T>(dst, src, 0, head);
  if constexpr (kStreams<T>) {
    fold<S, kMax, true, T>(dst, src, head, head + body);
    hwy::FlushStream();  // who is told that we are done sees it all
  }
  fold<S, kMax, false, T>(dst, src, head + body, n);
}

template <bool kMax, class T>
void fold_any(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n, bool past) {
  if (past) return src.size() == 2 ? fold_past<2, kMax, T>(dst, src, n) : fold_past<0, kMax, T>(dst, src, n);
  src.size() == 2 ? fold<2, kMax, false, T>(dst, src, 0, n) : fold<0, kMax, false, T>(dst, src, 0, n);
}

template <class T>
void fold_of(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n, bool max,
             bool past) {
  max ? fold_any<true, T>(dst, src, n, past) : fold_any<false, T>(dst, src, n, past);
}

}  // namespace

void fold_floats(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n, DType t,
                 bool max, bool past) {
  if (t == DType::f32) fold_of<float>(dst, src, n, max, past);
  if (t == DType::bf16) fold_of<bf16>(dst, src, n, max, past);
  if (t == DType::f16) fold_of<f16>(dst, src, n, max, past);
}

// 64-byte aligned, whole lines.
void copy_past(std::byte* dst, const std::byte* src, int64_t n) {
  const hn::ScalableTag<uint8_t> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  auto* to = reinterpret_cast<uint8_t*>(dst);
  auto* from = reinterpret_cast<const uint8_t*>(src);
  for (int64_t i = 0; i < n; i += lanes) hn::Stream(hn::LoadU(d, from + i), d, to + i);
  hwy::FlushStream();
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "device/device_memory.h"

namespace trireme::cpu {
HWY_EXPORT(fold_floats);
HWY_EXPORT(copy_past);

int64_t last_cache_bytes() {
  static const int64_t bytes = std::clamp<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), 8 << 20, 64 << 20);
  return bytes;
}

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
  const bool past = n * size_of(t) * int64_t(std::max(src.size(), dst.size())) >= last_cache_bytes() * 3 / 4;
  switch (t) {
    case DType::f32:
    case DType::bf16:
    case DType::f16:
      return HWY_DYNAMIC_DISPATCH(fold_floats)(dst, src, n, t, max, past);
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

// Pieces that all lie where one device adds them.
bool fold_on_device(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n,
                    DType t, bool max) {
  const FoldPieces fold = device_fold_of(src[0]);
  if (!fold || n == 0) return false;
  const auto is_there = [&](const std::byte* p) { return device_fold_of(p) == fold; };
  return std::all_of(src.begin(), src.end(), is_there) && std::all_of(dst.begin(), dst.end(), is_there) &&
         fold(dst, src, n, t, max);
}

// Pieces of which some lie on a device: brought to the host by blocks, added there in the same order, and
// sent to every destination. True where that was so.
bool fold_staged(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n, DType t,
                 bool max) {
  CopyBytes copy = nullptr;
  for (const std::byte* p : src) copy = copy ? copy : device_copy_of(p);
  for (const std::byte* p : dst) copy = copy ? copy : device_copy_of(p);
  if (!copy || n == 0) return copy != nullptr;
  const int64_t size = size_of(t), block = std::max<int64_t>(1, (1 << 20) / size);
  static thread_local std::vector<std::byte> staged;  // grows once
  staged.resize(size_t(block * size) * (src.size() + 1));
  std::vector<const std::byte*> at(src.size());
  std::byte* sum = staged.data() + size_t(block * size) * src.size();
  for (int64_t first = 0; first < n; first += block) {
    const int64_t count = std::min(block, n - first), bytes = count * size;
    for (size_t s = 0; s < src.size(); s++) {
      std::byte* to = staged.data() + size_t(block * size) * s;
      copy(to, src[s] + first * size, bytes);
      at[s] = to;
    }
    fold_pieces({&sum, 1}, at, count, t, max);
    for (std::byte* d : dst) copy(d + first * size, sum, bytes);
  }
  return true;
}

void fold_anywhere(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n, DType t,
                   bool max) {
  require(!src.empty() && !dst.empty(), "a reduction of no pieces, or to nowhere");
  if (fold_on_device(dst, src, n, t, max) || fold_staged(dst, src, n, t, max)) return;
  fold_pieces(dst, src, n, t, max);
}

}  // namespace

void sum_pieces(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n, DType t) {
  fold_anywhere(dst, src, n, t, false);
}
void max_pieces(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n, DType t) {
  fold_anywhere(dst, src, n, t, true);
}

void copy_piece(std::byte* dst, const std::byte* src, int64_t n) {
  if (n == 0 || dst == src) return;
  CopyBytes copy = device_copy_of(dst);
  if (!copy) copy = device_copy_of(src);
  if (copy) return copy(dst, src, n);
  if (n < last_cache_bytes() / 8) {
    std::memcpy(dst, src, size_t(n));
    return;
  }
  const int64_t head = int64_t(-reinterpret_cast<uintptr_t>(dst) % 64), body = (n - head) / 64 * 64;
  std::memcpy(dst, src, size_t(head));
  HWY_DYNAMIC_DISPATCH(copy_past)(dst + head, src + head, body);
  std::memcpy(dst + head + body, src + head + body, size_t(n - head - body));
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
