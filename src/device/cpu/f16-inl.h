// Loads and stores of f16 as f32 lanes, beside those of simd-inl.h; bit for bit tensor/dtype.h's f16 on every
// target. With F16C (part of the AVX2 target and up) they are one instruction, else integer arithmetic.
#if defined(TRIREME_DEVICE_CPU_F16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_DEVICE_CPU_F16_INL_H_
#undef TRIREME_DEVICE_CPU_F16_INL_H_
#else
#define TRIREME_DEVICE_CPU_F16_INL_H_
#endif

#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_INLINE VF of_f16(hn::Vec<DH> bits) {
  return hn::PromoteTo(DF(), hn::BitCast(hn::Rebind<hwy::float16_t, DF>(), bits));
}
HWY_INLINE hn::Vec<DH> to_f16(VF v) {
  return hn::BitCast(DH(), hn::DemoteTo(hn::Rebind<hwy::float16_t, DF>(), v));
}

#else

// The branches of tensor/dtype.h's f16, all computed, one kept. Magnitudes compare as signed integers.
using DI = hn::RebindToSigned<DF>;
HWY_INLINE VF of_f16(hn::Vec<DH> h) {
  const DI d;
  const auto bits = hn::BitCast(d, hn::PromoteTo(DU(), h));
  const auto a = hn::And(bits, hn::Set(d, 0x7fff)), shifted = hn::ShiftLeft<13>(a);
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(d, 0x8000)));
  const auto small = hn::BitCast(d, hn::Mul(hn::ConvertTo(DF(), a), fill(0x1p-24f)));
  const auto normal = hn::Add(shifted, hn::Set(d, 112 << 23));
  const auto nan = hn::Or(shifted, hn::Set(d, 0x7fc00000));
  auto out = hn::IfThenElse(hn::Lt(a, hn::Set(d, 0x400)), small, normal);
  out = hn::IfThenElse(hn::Eq(a, hn::Set(d, 0x7c00)), hn::Set(d, 0x7f800000), out);
  out = hn::IfThenElse(hn::Gt(a, hn::Set(d, 0x7c00)), nan, out);
  return hn::BitCast(DF(), hn::Or(sign, out));
}
HWY_INLINE hn::Vec<DH> to_f16(VF v) {
  const DI d;
  const auto bits = hn::BitCast(d, v), a = hn::And(bits, hn::Set(d, 0x7fffffff));
  const auto sign = hn::And(hn::BitCast(d, hn::ShiftRight<16>(hn::BitCast(DU(), bits))), hn::Set(d, 0x8000));
  const auto cut = hn::ShiftRight<13>(a);
  const auto odd = hn::And(cut, hn::Set(d, 1));
  const auto half_up = hn::Add(odd, hn::Set(d, 0xfff - (112 << 23)));
  const auto normal = hn::ShiftRight<13>(hn::Add(a, half_up));
  const auto near_half = hn::BitCast(d, hn::Add(hn::BitCast(DF(), a), fill(0.5f)));
  const auto small = hn::Sub(near_half, hn::Set(d, 0x3f000000));
  const auto nan = hn::Or(hn::And(cut, hn::Set(d, 0x3ff)), hn::Set(d, 0x7e00));
  auto out = hn::IfThenElse(hn::Lt(a, hn::Set(d, 0x38800000)), small, normal);
  out = hn::IfThenElse(hn::Gt(a, hn::Set(d, 0x477fefff)), hn::Set(d, 0x7c00), out);
  out = hn::IfThenElse(hn::Gt(a, hn::Set(d, 0x7f800000)), nan, out);
  return hn::TruncateTo(DH(), hn::BitCast(DU(), hn::Or(sign, out)));
}

#endif

HWY_INLINE VF load(const f16* p, Whole) {
  return of_f16(hn::LoadU(DH(), &p->bits));
}
HWY_INLINE void store(VF v, f16* p, Whole) {
  hn::StoreU(to_f16(v), DH(), &p->bits);
}
HWY_INLINE VF load(const f16* p, int64_t n) {
  HWY_ALIGN f16 t[kLanes] = {};
  std::memcpy(static_cast<void*>(t), p, size_t(n) * sizeof *p);
  return load(t, Whole());
}
HWY_INLINE void store(VF v, f16* p, int64_t n) {
  HWY_ALIGN f16 t[kLanes];
  store(v, t, Whole());
  std::memcpy(static_cast<void*>(p), t, size_t(n) * sizeof *p);
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // guard
