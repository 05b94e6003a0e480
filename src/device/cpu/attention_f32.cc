// Attention's tile functions in f32 by Highway, compiled for several instruction sets and chosen at run time;
// units are single f32. The same functions serve bf16 where the processor has no bf16 dot products: operands
// become f32 as they are packed, P and dS are rounded to bf16 as the native kernels round them, results at
// the store.
//
// e^x is simd-inl.h's, at most 1.1 ulp off; the products and sums are what rounds most.
#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/attention_f32.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/attention.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {
using namespace attention;  // of types and constants that no target changes

// A panel lies in memory as pieces of so many columns, [units along the summed dim][columns]: as many as
// registers sum at a time, so that what a loop reads are neighbouring lines, not every fourth, of which a
// first cache holds a quarter.
constexpr int64_t kColumns = kLanes == 8 ? kLane : kPanel;

// load() without its look a kilobyte ahead: tiles lie in near caches, where a request for each load only
// takes the place of others, and rows of a head lie so far apart that Ahead asks for them.
HWY_INLINE VF near(const float* p, Whole) {
  return hn::LoadU(DF(), p);
}
HWY_INLINE VF near(const bf16* p, Whole) {
  return widen(p);
}
template <class T>
HWY_INLINE VF near(const T* p, int64_t n) {
  return load(p, n);
}

template <class T>
HWY_INLINE const T* row(const attention::Rows& r, int64_t i) {
  return reinterpret_cast<const T*>(r.data) + i * r.stride;
}

// dst[0, width) = src row i from `first` on as f32, zeros beyond its end.
template <class T>
HWY_INLINE void copy_row(const attention::Rows& src, int64_t i, int64_t first, int64_t width, float* dst) {
  int64_t n = i < src.rows ? std::clamp<int64_t>(src.dim - first, 0, width) : 0;
  const T* from = row<T>(src, n > 0 ? i : 0) + (n > 0 ? first : 0);
  each_vector(n, [&](int64_t j, auto part) { store(near(from + j, part), dst + j, part); });
  std::fill(dst + n, dst + width, 0.0f);
}

template <class T>
void pack_rows(const attention::Rows& src, int64_t padded, int64_t depth, std::byte* dst) {
  auto* out = reinterpret_cast<float*>(dst);
  for (int64_t i = 0; i < padded; i++) copy_row<T>(src, i, 0, depth, out + i * depth);
}

template <class T>
void pack_summed(const attention::Rows& src, int64_t padded, int64_t depth, std::byte* dst) {
  auto* out = reinterpret_cast<float*>(dst);
  for (int64_t first = 0; first < depth; first += kColumns) {
    int64_t width = std::min(kColumns, depth - first);
    for (int64_t i = 0; i < padded; i++, out += width) copy_row<T>(src, i, first, width, out);
  }
}

// dst[d][0..3] (ld apart) = rows[0..3][d] for d below n, a multiple of 4.
HWY_INLINE void transpose(const float (*rows)[kPanel], int64_t n, float* dst, int64_t ld) {
  const hn::FixedTag<float, 4> f;
  const hn::RepartitionToWide<decltype(f)> wide;
  for (int64_t d = 0; d < n; d += 4, dst += 4 * ld) {
    auto r0 = hn::Load(f, rows[0] + d), r1 = hn::Load(f, rows[1] + d);
    auto r2 = hn::Load(f, rows[2] + d), r3 = hn::Load(f, rows[3] + d);
    auto a = hn::BitCast(wide, hn::InterleaveLower(f, r0, r1));
    auto b = hn::BitCast(wide, hn::InterleaveUpper(f, r0, r1));
    auto c = hn::BitCast(wide, hn::InterleaveLower(f, r2, r3));
    auto e = hn::BitCast(wide, hn::InterleaveUpper(f, r2, r3));
    hn::StoreU(hn::BitCast(f, hn::InterleaveLower(wide, a, c)), f, dst);
    hn::StoreU(hn::BitCast(f, hn::InterleaveUpper(wide, a, c)), f, dst + ld);
    hn::StoreU(hn::BitCast(f, hn::InterleaveLower(wide, b, e)), f, dst + 2 * ld);
    hn::StoreU(hn::BitCast(f, hn::InterleaveUpper(wide, b, e)), f, dst + 3 * ld);
  }
}

template <class T>
void pack_columns(const attention::Rows& src, int64_t padded, int64_t depth, std::byte* dst) {
  auto* out = reinterpret_cast<float*>(dst);
  HWY_ALIGN float four[4][kPanel];
  for (int64_t first = 0; first < padded; first += kColumns, out += kColumns * depth) {
    int64_t width = std::min(kColumns, padded - first);
    for (int64_t i = 0; i < width; i += 4)
      for (int64_t d = 0; d < depth; d += kPanel) {
        int64_t n = std::min(kPanel, depth - d);
        for (int64_t l = 0; l < 4; l++) copy_row<T>(src, first + i + l, d, n, four[l]);
        transpose(four, n, out + d * width + i, width);
      }
  }
}

// sum += left * right. With 16 registers spelled out: left to themselves, compilers move sums between
// registers, and a core that shares its decoders with another thread is bound by them.
HWY_INLINE void multiply_add(VF& sum, VF left, VF right) {
#if HWY_TARGET == HWY_AVX2
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum.raw) : "x"(left.raw), "x"(right.raw));
#else
  sum = hn::MulAdd(left, right, sum);
#endif
}

// MR rows by NV vectors in registers. Of a's two strides one is 1: kAcross, that from row to row.
template <int MR, int NV, bool kAcross>
HWY_INLINE void micro(const Product<float>& p, const float* a, const float* b, int64_t ldb, float* c,
                      const float* keep) {
  constexpr int kSteps = HWY_TARGET == HWY_AVX2 ? 2 : 1, kPointers = kAcross ? 1 : MR;
  VF sum[MR][NV];
  for (int i = 0; i < MR; i++)
    for (int j = 0; j < NV; j++) {
      sum[i][j] = fill(0.0f);
      if (p.add) {
        sum[i][j] = near(c + i * p.ldc + j * kLanes, Whole());
        if (keep) sum[i][j] = hn::Mul(sum[i][j], fill(keep[i]));
      }
    }
  const float* row[kPointers];
  for (int i = 0; i < kPointers; i++) row[i] = a + i * p.a_row;
  const int64_t by = kAcross ? p.a_step : 1;
  for (int64_t k = 0, at = 0; k < p.k; k += kSteps) {
#if HWY_TARGET == HWY_AVX2
#pragma GCC unroll 8
    for (int i = 0; i < kPointers; i++) asm("" : "+r"(row[i]));  // not one register more for each step
#endif
#pragma GCC unroll 2
    for (int step = 0; step < kSteps; step++, at += by, b += ldb) {
      VF right[NV];
#pragma GCC unroll 4
      for (int j = 0; j < NV; j++) right[j] = near(b + j * kLanes, Whole());
#pragma GCC unroll 8
      for (int i = 0; i < MR; i++) {
        const VF left = fill(kAcross ? row[0][at + i] : row[kAcross ? 0 : i][at]);
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) multiply_add(sum[i][j], left, right[j]);
      }
    }
  }
  for (int i = 0; i < MR; i++)
    for (int j = 0; j < NV; j++) store(sum[i][j], c + i * p.ldc + j * kLanes, Whole());
}

// Rows [first, first + rows) of every strip.
template <int MR, int NV>
HWY_NOINLINE void panel(const Product<float>& p, const float* b, int64_t ldb, float* c, int64_t first = 0,
                        int64_t rows = kStrip) {
  auto* a = reinterpret_cast<const float*>(p.a);
  for (int64_t strip = 0; strip < p.m; strip += kStrip)
    for (int64_t i = strip + first; i < strip + first + rows; i += MR) {
      const float* keep = p.keep ? p.keep + i : nullptr;
      if (p.a_row == 1)
        micro<MR, NV, true>(p, a + i, b, ldb, c + i * p.ldc, keep);
      else
        micro<MR, NV, false>(p, a + i * p.a_row, b, ldb, c + i * p.ldc, keep);
    }
}

// Register blocks: up to 16 accumulators of 16 lanes, 12 of 8 lanes (16 registers), 8 of shorter vectors.
void product(const Product<float>& p) {
  for (int64_t j = 0; j < p.n; j += kPanel) {
    int64_t width = std::min(kColumns, p.b_cols - j), groups = std::min(kPanel, p.n - j) / kLane;
    const float* b = reinterpret_cast<const float*>(p.b) + j * p.b_depth + p.b_first * width;
    if constexpr (kLanes == 16) {
      if (groups == 1) panel<8, 1>(p, b, width, p.c + j);
      if (groups == 2) panel<8, 2>(p, b, width, p.c + j);
      if (groups == 3) panel<4, 3>(p, b, width, p.c + j);
      if (groups == 4) panel<4, 4>(p, b, width, p.c + j);
    } else if constexpr (kLanes == 8) {
      for (int64_t l = 0; l < groups * kLane; l += kLane) {
        panel<6, 2>(p, b + l * p.b_depth, kColumns, p.c + j + l, 0, 12);
        panel<4, 2>(p, b + l * p.b_depth, kColumns, p.c + j + l, 12, 4);
      }
    } else {
      constexpr int kVectors = int(std::min<int64_t>(4, kLane / kLanes)), kRows = 8 / kVectors;
      for (int64_t l = 0; l < groups * kLane; l += kVectors * kLanes)
        panel<kRows, kVectors>(p, b + l, width, p.c + j + l);
    }
  }
}

// To T and back.
template <class T>
HWY_INLINE VF rounded(VF x) {
  if constexpr (std::is_same_v<T, bf16>)
    return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), to_bf16(x))));
  else
    return x;
}

// Lanes j, j + 1 ... that are below `seen`.
HWY_INLINE hn::Mask<DF> below(int64_t seen, int64_t j) {
  return hn::FirstN(DF(), size_t(std::clamp<int64_t>(seen - j, 0, kLanes)));
}

template <class T>
void softmax(const SoftmaxTile<float>& t) {
  alignas(64) float top[kStrip], sums[kStrip];
  const VF scale = fill(t.scale), lowest = fill(-HUGE_VALF);
  for (int64_t r = 0; r < kStrip; r++) {
    const float* s = t.s + r * t.ld;
    int64_t seen = std::min(t.mask.row(r), t.n), j = 0;
    VF m = lowest;
    for (; j + kLanes <= seen; j += kLanes) m = hn::Max(m, hn::Mul(near(s + j, Whole()), scale));
    if (j < seen)
      m = hn::Max(m, hn::IfThenElse(below(seen, j), hn::Mul(near(s + j, Whole()), scale), lowest));
    top[r] = hn::GetLane(hn::MaxOfLanes(DF(), m));
  }
  for (int64_t r = 0; r < kStrip; r += kLanes) {
    VF old = near(t.m + r, Whole()), m = hn::Max(old, near(top + r, Whole()));
    store(exp(hn::Sub(old, m)), t.keep + r, Whole());
    store(m, t.m + r, Whole());
  }
  for (int64_t r = 0; r < kStrip; r++) {
    const float* s = t.s + r * t.ld;
    float* p = reinterpret_cast<float*>(t.p) + r * t.ld;
    int64_t seen = std::min(t.mask.row(r), t.n);
    VF m = fill(t.m[r]), sum = fill(0.0f);
    for (int64_t j = 0; j < t.n; j += kLanes) {
      VF e = exp(hn::MulSub(near(s + j, Whole()), scale, m));
      if (j + kLanes > seen) e = hn::IfThenElseZero(below(seen, j), e);
      sum = hn::Add(sum, e);
      store(rounded<T>(e), p + j, Whole());
    }
    sums[r] = cpu::HWY_NAMESPACE::sum(sum);
  }
  for (int64_t r = 0; r < kStrip; r++) t.l[r] = t.keep[r] * t.l[r] + sums[r];
}

template <class T>
void gradient(const GradientTile<float>& t) {
  const VF scale = fill(t.scale);
  for (int64_t r = 0; r < kStrip; r++) {
    const float *s = t.s + r * t.ld, *dp = t.dp + r * t.ld;
    float* p_out = reinterpret_cast<float*>(t.p_pairs) + r * t.ld;
    float* ds_out = reinterpret_cast<float*>(t.ds_pairs) + r * t.ld;
    const VF lse = fill(t.lse[r]), delta = fill(t.delta[r]);
    int64_t seen = t.mask.row(r);
    for (int64_t j = 0; j < t.n; j += kLanes) {
      VF p = exp(hn::MulSub(near(s + j, Whole()), scale, lse));
      VF ds = hn::Mul(p, hn::Sub(near(dp + j, Whole()), delta));
      if (j + kLanes > seen) {
        auto m = below(seen, j);
        p = hn::IfThenElseZero(m, p), ds = hn::IfThenElseZero(m, ds);
      }
      store(rounded<T>(p), p_out + j, Whole());
      store(rounded<T>(ds), ds_out + j, Whole());
    }
  }
}

void drop(const DropTile<float>& t) {
  const VF factor = fill(t.factor);
  for (int64_t r = 0; r < kStrip; r++) {
    float* x = t.x + r * t.ld;
    const uint16_t* bits = t.bits + r * t.words;
    for (int64_t j = 0; j < t.n; j += kLanes) {
      const uint32_t word = uint32_t(bits[j / 16]) >> (j % 16);
      const uint8_t raw[8] = {uint8_t(word), uint8_t(word >> 8)};
      const VF v = hn::Mul(near(x + j, Whole()), factor);
      store(hn::IfThenElseZero(hn::LoadMaskBits(DF(), raw), v), x + j, Whole());
    }
  }
}

template <class T>
void store_rows(const float* c, int64_t ldc, float factor, const float* factors, const attention::Rows& dst) {
  for (int64_t r = 0; r < dst.rows; r++) {
    const VF f = fill(factors ? factor * factors[r] : factor);
    T* out = const_cast<T*>(row<T>(dst, r));
    each_vector(dst.dim,
                [&](int64_t j, auto part) { store(hn::Mul(f, near(c + r * ldc + j, part)), out + j, part); });
  }
}

template <class T>
void row_dots(const attention::Rows& a, const attention::Rows& b, float* out) {
  for (int64_t r = 0; r < a.rows; r++) {
    const T *x = row<T>(a, r), *y = row<T>(b, r);
    VF dot = fill(0.0f);
    each_vector(a.dim,
                [&](int64_t j, auto part) { dot = hn::MulAdd(near(x + j, part), near(y + j, part), dot); });
    out[r] = sum(dot);
  }
}

template <class T>
const Tiles<float>* tiles() {
  static const Tiles<float> t{sizeof(T),      4,       1,          pack_rows<T>, pack_columns<T>,
                              pack_summed<T>, product, softmax<T>, gradient<T>,  store_rows<T>,
                              row_dots<T>,    drop};
  return &t;
}
const Tiles<float>* f32_tiles() {
  return tiles<float>();
}
const Tiles<float>* bf16_tiles() {
  return tiles<bf16>();
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {
HWY_EXPORT(f32_tiles);
HWY_EXPORT(bf16_tiles);
namespace attention {
const Tiles<float>& tiles_f32() {
  return *HWY_DYNAMIC_DISPATCH(f32_tiles)();
}
const Tiles<float>& tiles_bf16_by_f32() {
  return *HWY_DYNAMIC_DISPATCH(bf16_tiles)();
}
}  // namespace attention
}  // namespace trireme::cpu
#endif
