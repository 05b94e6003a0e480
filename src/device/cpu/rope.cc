// Rotary embedding (Su et al. 2021) in place on x [N, heads, D], pairs (a, b) = (i, i + D/2) or (2i, 2i + 1):
//   a' = a cos - b sin,  b' = b cos + a sin;  inverse (the backward pass): sin with the other sign.
// Interleaved, a row of cosines and one of signed sines are spread over their pairs first, in scratch. cos
// and sin rows of a position serve all heads from L1. Traffic with T = bf16: 4 B an element.
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
    for (int64_t h = 0; h < heads; h++, row += a.x.stride[1]) {
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

// spread [2 D]: D cosines (c0 c0 c1 c1 ...), then D sines (-s0 s0 -s1 s1 ...).
template <class T>
void rotate_pairs(const RopeArgs& a, float* spread, int64_t begin, int64_t end) {
  const int64_t heads = a.x.shape[1], d = a.x.shape[2];
  const Rows<const float> cos = rows_of<const float>(a.cos), sin = rows_of<const float>(a.sin);
  const int32_t* position = a.positions.as<int32_t>();
  for (int64_t n = begin; n < end; n++) {
    const float *c = cos[position[n]], *s = sin[position[n]];
    for (int64_t i = 0; i < d; i++) {
      spread[i] = c[i / 2];
      spread[d + i] = (i % 2 == 0) != a.inverse ? -s[i / 2] : s[i / 2];
    }
    T* row = a.x.as<T>() + n * a.x.stride[0];
    for (int64_t h = 0; h < heads; h++, row += a.x.stride[1])
      each_vector(d, [&](int64_t i, auto part) HWY_ATTR {
        const VF x = load(row + i, part), other = hn::Reverse2(DF(), x);
        const VF turned = hn::Mul(other, load(spread + d + i, part));
        store(hn::MulAdd(x, load(spread + i, part), turned), row + i, part);
      });
  }
}

}  // namespace

void rope_pairs(const RopeArgs& a, float* spread, int64_t begin, int64_t end) {
  a.x.dtype == DType::bf16 ? rotate_pairs<bf16>(a, spread, begin, end)
                           : rotate_pairs<float>(a, spread, begin, end);
}
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
HWY_EXPORT(rope_pairs);

int64_t scratch_bytes(const RopeArgs& a, const Context& ctx) {
  return a.interleaved ? ctx.threads * 2 * a.x.shape[2] * int64_t(sizeof(float)) : 0;
}
void launch(const RopeArgs& a, const Tensor& scratch, const Context& ctx) {
  require_indices(a.positions, 0, a.cos.shape[0], "rope: position", "the table has positions");
  if (a.interleaved)
    return parallel_for(ctx, a.x.shape[0], row_grain(a.x.shape[1] * a.x.shape[2]),
                        [&](int64_t begin, int64_t end, int thread) {
                          float* spread = reinterpret_cast<float*>(scratch.data) + thread * 2 * a.x.shape[2];
                          HWY_DYNAMIC_DISPATCH(rope_pairs)(a, spread, begin, end);
                        });
  parallel_for(ctx, a.x.shape[0], row_grain(a.x.shape[1] * a.x.shape[2]),
               [&](int64_t begin, int64_t end, int) {
                 HWY_DYNAMIC_DISPATCH(rope)
                 (a, begin, end);
               });
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
