// What the Highway kernels share: loads and stores of T in {float, bf16} as f32 lanes, whole or partial
// vectors, exp, sigmoid, reductions. Included once per target (hwy/foreach_target.h), hence the toggled
// guard.
//
// Rules that keep results independent of the place of an element (vector body or tail, thread, flat range):
// tails run the very code of whole vectors on a partial load and store; a product that is added is always
// written as MulAdd / NegMulAdd, so that a compiler has nothing left to contract differently in two copies of
// a loop.
#if defined(TRIREME_DEVICE_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_DEVICE_CPU_SIMD_INL_H_
#undef TRIREME_DEVICE_CPU_SIMD_INL_H_
#else
#define TRIREME_DEVICE_CPU_SIMD_INL_H_
#endif

#include <cmath>
#include <cstring>
#include <type_traits>

#include "device/cpu/targets.h"
#include "hwy/highway.h"
#include "tensor/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;    // f32 lanes of one vector
using DU = hn::RebindToUnsigned<DF>;  // their bits
using DH = hn::Rebind<uint16_t, DF>;  // as many 16-bit lanes (half a vector)
using VF = hn::Vec<DF>;
inline constexpr int64_t kLanes = int64_t(HWY_LANES(float));
static_assert(
    kLanes >= 4,
    "kernels take vectors; on x86-64, options of Highway's baseline: trireme_highway in CMakeLists.txt");

// How much of a vector to touch: Whole, or the first n lanes (0 < n < kLanes); lanes beyond are 0 after a
// load.
struct Whole {};

HWY_INLINE VF fill(float x) {
  return hn::Set(DF(), x);
}
// Whole vectors ask for what lies a kilobyte further on: where hardware foresees little (a processor shared
// by virtual machines) norms, gelu and AdamW take 6 to 30 % less time, elsewhere as much. By its number, for
// it may lie behind the operand's end.
HWY_INLINE void ask_ahead(const void* p) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(p) + 1024));
}
HWY_INLINE VF widen(const bf16* p) {
  return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::LoadU(DH(), &p->bits))));
}
HWY_INLINE VF load(const float* p, Whole) {
  ask_ahead(p);
  return hn::LoadU(DF(), p);
}
HWY_INLINE VF load(const bf16* p, Whole) {
  ask_ahead(p);
  return widen(p);
}

// bf16 of each lane, to nearest even, NaN stays NaN: bit for bit tensor/dtype.h's bf16(float). One exception:
// the instruction of AVX512-BF16 takes subnormals (below 1.2e-38) for zeros. It saves 8 of some 25
// instructions a vector in a kernel like swiglu; neither Highway 1.0.3 nor the AVX3 target of the compilers
// knows it.
HWY_INLINE hn::Vec<DH> to_bf16(VF v) {
#if HWY_TARGET == HWY_AVX3
  if (kHasBf16Rounding) [[likely]] {
    hn::Vec<DH> out;
    asm("vcvtneps2bf16 %1, %0" : "=v"(out.raw) : "v"(v.raw));
    return out;
  }
#endif
  const DU d;
  const auto u = hn::BitCast(d, v);
  const auto high = hn::ShiftRight<16>(u);
  const auto half = hn::Add(hn::And(high, hn::Set(d, 1)), hn::Set(d, 0x7fff));
  const auto rounded = hn::ShiftRight<16>(hn::Add(u, half));
  const auto quiet = hn::Or(high, hn::Set(d, 0x40));
  return hn::TruncateTo(DH(), hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(v)), quiet, rounded));
}
HWY_INLINE void store(VF v, float* p, Whole) {
  hn::StoreU(v, DF(), p);
}
HWY_INLINE void store(VF v, bf16* p, Whole) {
  hn::StoreU(to_bf16(v), DH(), &p->bits);
}

// Partial accesses never touch a byte beyond their lanes: masked where the target's masks suppress faults,
// else through a small copy.
HWY_INLINE VF load(const float* p, int64_t n) {
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN float t[kLanes] = {};
  std::memcpy(t, p, size_t(n) * sizeof *p);
  return hn::Load(DF(), t);
#else
  return hn::MaskedLoad(hn::FirstN(DF(), size_t(n)), DF(), p);
#endif
}
HWY_INLINE VF load(const bf16* p, int64_t n) {
  HWY_ALIGN bf16 t[kLanes] = {};
  std::memcpy(static_cast<void*>(t), p, size_t(n) * sizeof *p);
  return widen(t);
}
HWY_INLINE void store(VF v, float* p, int64_t n) {
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN float t[kLanes];
  hn::Store(v, DF(), t);
  std::memcpy(p, t, size_t(n) * sizeof *p);
#else
  hn::BlendedStore(v, hn::FirstN(DF(), size_t(n)), DF(), p);
#endif
}
HWY_INLINE void store(VF v, bf16* p, int64_t n) {
  HWY_ALIGN bf16 t[kLanes];
  store(v, t, Whole());
  std::memcpy(static_cast<void*>(p), t, size_t(n) * sizeof *p);
}
// Lanes that a partial access leaves out get `x` (0 is the natural filling of sums, -inf that of maxima).
HWY_INLINE VF pad(VF v, Whole, float) {
  return v;
}
HWY_INLINE VF pad(VF v, int64_t n, float x) {
  return hn::IfThenElse(hn::FirstN(DF(), size_t(n)), v, fill(x));
}

// body(i, part) for every vector of [0, n): part is Whole, or the number of lanes of the tail.
template <class Body>
HWY_INLINE void each_vector(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, Whole());
  if (i < n) body(i, n - i);
}
// body(i, width, part): the same by packs of four vectors (width is a constant 4: vectors i, i + kLanes,
// ...), then one by one (a constant 1). Long chains of dependent instructions overlap in a pack, and
// reductions keep an accumulator for each of its vectors.
template <class Body>
HWY_INLINE void each_pack(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) body(i, std::integral_constant<int, 4>(), Whole());
  for (; i + kLanes <= n; i += kLanes) body(i, std::integral_constant<int, 1>(), Whole());
  if (i < n) body(i, std::integral_constant<int, 1>(), n - i);
}
HWY_INLINE float sum(VF v) {
  return hn::GetLane(hn::SumOfLanes(DF(), v));
}
HWY_INLINE float sum(const VF (&v)[4]) {
  return sum(hn::Add(hn::Add(v[0], v[1]), hn::Add(v[2], v[3])));
}
HWY_INLINE float max(const VF (&v)[4]) {
  return hn::GetLane(hn::MaxOfLanes(DF(), hn::Max(hn::Max(v[0], v[1]), hn::Max(v[2], v[3]))));
}

// exp(x), at most 1.1 ulp off for results that are normal numbers (measured over all of them); 0 below, inf
// above, NaN for NaN. x = n ln2 + r with |r| <= ln2/2: exp(x) = 2^n (1 + r + r^2 q(r)), q the minimax
// polynomial of degree 4 for the relative error of the whole (3.1e-9). n appears in the low bits of x/ln2
// + 1.5 * 2^23; ln2 is split in two so that n * ln2's high part is exact without fused multiply-add too. Step
// by step over K vectors: a single chain of 14 steps leaves a core half idle (measured: 16 % less time with K
// = 4).
template <int K>
HWY_INLINE void exp(VF (&x)[K]) {
  VF bounded[K], shifted[K], n[K], r[K], r2[K], high[K], low[K];
  for (int k = 0; k < K; k++) {
#if HWY_TARGET == HWY_AVX3
    bounded[k] =
        hn::Min(fill(100.0f), x[k]);  // inf would become NaN; of (100, NaN) vminps returns the second
#else
    bounded[k] = x[k];
#endif
  }
  for (int k = 0; k < K; k++) shifted[k] = hn::MulAdd(bounded[k], fill(1.44269504f), fill(12582912.0f));
  for (int k = 0; k < K; k++) n[k] = hn::Sub(shifted[k], fill(12582912.0f));
  for (int k = 0; k < K; k++) r[k] = hn::NegMulAdd(n[k], fill(0.693145751953125f), bounded[k]);
  for (int k = 0; k < K; k++) r[k] = hn::NegMulAdd(n[k], fill(1.428606765330187e-6f), r[k]);
  for (int k = 0; k < K; k++) r2[k] = hn::Mul(r[k], r[k]);
  for (int k = 0; k < K; k++) high[k] = hn::MulAdd(r[k], fill(8.36870957e-3f), fill(4.16683864e-2f));
  for (int k = 0; k < K; k++) low[k] = hn::MulAdd(r[k], fill(1.66665207e-1f), fill(4.99999935e-1f));
  for (int k = 0; k < K; k++) high[k] = hn::MulAdd(r2[k], fill(1.38146501e-3f), high[k]);
  for (int k = 0; k < K; k++) high[k] = hn::MulAdd(high[k], r2[k], low[k]);
  for (int k = 0; k < K; k++) high[k] = hn::MulAdd(r2[k], high[k], r[k]);
  for (int k = 0; k < K; k++) high[k] = hn::Add(high[k], fill(1.0f));
  for (int k = 0; k < K; k++) {
#if HWY_TARGET == HWY_AVX3
    // p * 2^n, saturating; not-less-than keeps NaN.
    const __mmask16 normal = _mm512_cmp_ps_mask(x[k].raw, fill(-87.33654f).raw, _CMP_NLT_UQ);
    x[k] = VF{_mm512_maskz_scalef_ps(normal, high[k].raw, n[k].raw)};
#else
    const DU d;
    const auto scale = hn::ShiftLeft<23>(hn::BitCast(d, shifted[k]));
    const VF y = hn::BitCast(DF(), hn::Add(hn::BitCast(d, high[k]), scale));
    // x + inf: inf where the result overflows, NaN where x is NaN.
    const VF top = hn::IfThenElse(hn::Le(x[k], fill(88.72283f)), y, hn::Add(x[k], fill(HUGE_VALF)));
    x[k] = hn::IfThenZeroElse(hn::Lt(x[k], fill(-87.33654f)), top);
#endif
  }
}
HWY_INLINE VF exp(VF x) {
  VF y[1] = {x};
  exp(y);
  return y[0];
}
// Of e = exp(-x): s = 1 / (1 + e), and 1 - s as e s: no cancellation for large x. Where e overflowed both are
// 0, for the minimum keeps inf * 0 out.
struct Sigmoid {
  VF s, rest;
};
HWY_INLINE Sigmoid sigmoid_of_exp(VF e) {
  const VF s = hn::Div(fill(1), hn::Add(fill(1), e));
  return {s, hn::Mul(hn::Min(fill(3e38f), e), s)};
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // guard
