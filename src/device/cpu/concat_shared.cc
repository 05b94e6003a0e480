// Keys of heads beside a part that all heads share, and the gradients of both. Bound by memory: every element
// is read and written once; a token's heads are one piece of work, in which the shared row stays in L1.
#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/concat_shared.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/launch.h"
#include "device/cpu/rows.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

// db[n] of tokens [begin, end): dy [N, H, A + B] from column A on.
template <class T>
void add_heads(const ConcatSharedBackwardArgs& p, int64_t begin, int64_t end) {
  const int64_t heads = p.dy.shape[1], first = p.da.shape[2];
  for (int64_t n = begin; n < end; n++) {
    const T* row = p.dy.as<T>() + n * p.dy.stride[0] + first;
    each_vector(p.db.shape[1], [&](int64_t i, auto part) HWY_ATTR {
      VF total = fill(0);
      for (int64_t h = 0; h < heads; h++) total = hn::Add(total, load(row + h * p.dy.stride[1] + i, part));
      store(total, p.db.as<T>() + n * p.db.stride[0] + i, part);
    });
  }
}

}  // namespace

void concat_shared_sum(const ConcatSharedBackwardArgs& p, int64_t begin, int64_t end) {
  p.dy.dtype == DType::bf16 ? add_heads<bf16>(p, begin, end) : add_heads<float>(p, begin, end);
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(concat_shared_sum);

namespace {
// The row [n, h] of t [N, H, C], or [n] of t [N, C].
std::byte* row_at(const Tensor& t, int64_t n, int64_t h = 0) {
  return t.data + (n * t.stride[0] + h * (t.shape.rank == 3 ? t.stride[1] : 0)) * size_of(t.dtype);
}
}  // namespace

int64_t scratch_bytes(const ConcatSharedArgs&, const Context&) {
  return 0;
}
void launch(const ConcatSharedArgs& p, const Tensor&, const Context& ctx) {
  const int64_t heads = p.y.shape[1], element = size_of(p.y.dtype);
  const auto own = size_t(p.a.shape[2] * element), shared = size_t(p.b.shape[1] * element);
  parallel_for(ctx, p.y.shape[0], row_grain(heads * p.y.shape[2]), [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; n++)
      for (int64_t h = 0; h < heads; h++) {
        std::memcpy(row_at(p.y, n, h), row_at(p.a, n, h), own);
        std::memcpy(row_at(p.y, n, h) + own, row_at(p.b, n), shared);
      }
  });
}

int64_t scratch_bytes(const ConcatSharedBackwardArgs&, const Context&) {
  return 0;
}
void launch(const ConcatSharedBackwardArgs& p, const Tensor&, const Context& ctx) {
  const int64_t heads = p.dy.shape[1];
  const auto own = size_t(p.da.shape[2] * size_of(p.dy.dtype));
  parallel_for(ctx, p.dy.shape[0], row_grain(heads * p.dy.shape[2]), [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; n++)
      for (int64_t h = 0; h < heads; h++) std::memcpy(row_at(p.da, n, h), row_at(p.dy, n, h), own);
    HWY_DYNAMIC_DISPATCH(concat_shared_sum)(p, begin, end);
  });
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
