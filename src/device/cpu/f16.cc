#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/f16.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/f16-inl.h"
#include "device/cpu/f16.h"
#include "device/cpu/rows.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {

void f32_of_f16(float* dst, const f16* src, int64_t n) {
  each_vector(n, [&](int64_t i, auto part) HWY_ATTR { store(load(src + i, part), dst + i, part); });
}
void f16_of_f32(f16* dst, const float* src, int64_t n) {
  each_vector(n, [&](int64_t i, auto part) HWY_ATTR { store(load(src + i, part), dst + i, part); });
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(f32_of_f16);
HWY_EXPORT(f16_of_f32);

namespace {

// f(offset of the run in t, the same in a dense tensor, elements) for every contiguous run of t.
template <class F>
void each_run(const Tensor& t, const Context& ctx, F&& f) {
  int64_t run = 1;
  int outer = t.shape.rank;  // dims before the run
  while (outer > 0 && (t.shape[outer - 1] == 1 || t.stride[size_t(outer - 1)] == run))
    run *= t.shape[--outer];
  if (outer == 0) {
    parallel_for(ctx, run, kGrainElements,
                 [&](int64_t begin, int64_t end, int) { f(begin, begin, end - begin); });
    return;
  }
  parallel_for(ctx, t.numel() / run, row_grain(run), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; r++) {
      int64_t at = 0, rest = r;
      for (int d = outer - 1; d >= 0; d--) at += rest % t.shape[d] * t.stride[size_t(d)], rest /= t.shape[d];
      f(at, r * run, run);
    }
  });
}

}  // namespace

void widen(const Tensor& f32, const Tensor& half, const Context& ctx) {
  each_run(half, ctx, [&](int64_t at, int64_t dense, int64_t n) {
    HWY_DYNAMIC_DISPATCH(f32_of_f16)(f32.as<float>() + dense, half.as<f16>() + at, n);
  });
}
void round_to_f16(const Tensor& half, const Tensor& f32, const Context& ctx) {
  each_run(half, ctx, [&](int64_t at, int64_t dense, int64_t n) {
    HWY_DYNAMIC_DISPATCH(f16_of_f32)(half.as<f16>() + at, f32.as<float>() + dense, n);
  });
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
