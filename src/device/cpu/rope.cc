// Rotary embedding (Su et al. 2021) in place on x [N, heads, D], pairs (i, i + D/2):
//   a' = a cos - b sin,  b' = b cos + a sin;  inverse (the backward pass): sin with the other sign.
// cos and sin rows of a position serve all heads from L1. Traffic with T = bf16: 4 B an element.
#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/rope.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/indices.h"
#include "device/cpu/launch.h"
#include "device/cpu/rows.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

template <bool inverse, class T>
void rotate(const RopeArgs& a, int64_t begin, int64_t end) {
  const int64_t heads = a.x.shape[1], half = a.x.shape[2] / 2;
  const Rows<const float> cos = rows_of<const float>(a.cos), sin = rows_of<const float>(a.sin);
  const int32_t* position = a.positions.as<int32_t>();
  for (int64_t n = begin; n < end; n++) {
    const float *c = cos[position[n]], *s = sin[position[n]];
    T* row = a.x.as<T>() + n * a.x.stride[0];
    for (int64_t h = 0; h < heads; h++, row += 2 * half) {
      T *lower = row, *upper = row + half;
      each_vector(half, [&](int64_t i, auto part) HWY_ATTR {
        const VF x = load(lower + i, part), y = load(upper + i, part);
        const VF co = load(c + i, part), si = load(s + i, part);
        const VF xs = hn::Mul(x, si), ys = hn::Mul(y, si);
        store(inverse ? hn::MulAdd(x, co, ys) : hn::MulSub(x, co, ys), lower + i, part);
        store(inverse ? hn::MulSub(y, co, xs) : hn::MulAdd(y, co, xs), upper + i, part);
      });
    }
  }
}

}  // namespace

void rope(const RopeArgs& a, int64_t begin, int64_t end) {
  const bool half = a.x.dtype == DType::bf16;
  if (a.inverse)
    half ? rotate<true, bf16>(a, begin, end) : rotate<true, float>(a, begin, end);
  else
    half ? rotate<false, bf16>(a, begin, end) : rotate<false, float>(a, begin, end);
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(rope);

int64_t scratch_bytes(const RopeArgs&, const Context&) {
  return 0;
}
void launch(const RopeArgs& a, const Tensor&, const Context& ctx) {
  require_indices(a.positions, 0, a.cos.shape[0], "rope: position", "the table has positions");
  parallel_for(ctx, a.x.shape[0], row_grain(a.x.shape[1] * a.x.shape[2]),
               [&](int64_t begin, int64_t end, int) {
                 HWY_DYNAMIC_DISPATCH(rope)
                 (a, begin, end);
               });
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
