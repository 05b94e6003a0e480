// Add, cast and zero over contiguous elements; the sum of squares and the count of non-finite values.
//
// square_sums: element i of a block of 4,096 goes to accumulator i mod 32, in double; the 32 are then added
// in order. Squares are exact in double (24 x 24 bits), so every target and vector width gives the same bits.
#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/elementwise.cc"
#include "hwy/foreach_target.h"

#include <atomic>

#include "device/cpu/f16-inl.h"
#include "device/cpu/launch.h"
#include "device/cpu/rows.h"
#include "device/cpu/simd-inl.h"
#include "mesh/shard.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

template <class A, class B, class Y>
void add_range(const AddArgs& p, int64_t begin, int64_t end) {
  const A* a = p.a.as<A>() + begin;
  const B* b = p.b.as<B>() + begin;
  Y* y = p.y.as<Y>() + begin;
  each_vector(end - begin, [&](int64_t i, auto part) HWY_ATTR {
    store(hn::Add(load(a + i, part), load(b + i, part)), y + i, part);
  });
}
template <class A, class B>
void add_to(const AddArgs& p, int64_t begin, int64_t end) {
  p.y.dtype == DType::bf16 ? add_range<A, B, bf16>(p, begin, end) : add_range<A, B, float>(p, begin, end);
}
template <class A>
void add_with(const AddArgs& p, int64_t begin, int64_t end) {
  p.b.dtype == DType::bf16 ? add_to<A, bf16>(p, begin, end) : add_to<A, float>(p, begin, end);
}

template <class S, class D>
void convert(const CastArgs& p, int64_t begin, int64_t end) {
  const S* src = p.src.as<S>() + begin;
  D* dst = p.dst.as<D>() + begin;
  each_vector(end - begin, [&](int64_t i, auto part) HWY_ATTR { store(load(src + i, part), dst + i, part); });
}

using DD = hn::ScalableTag<double>;
HWY_INLINE hn::Vec<DD> load_double(const float* p) {
  return hn::PromoteTo(DD(), hn::LoadU(hn::Rebind<float, DD>(), p));
}
HWY_INLINE hn::Vec<DD> load_double(const bf16* p) {
  const hn::Rebind<float, DD> f;
  const auto bits =
      hn::PromoteTo(hn::RebindToUnsigned<decltype(f)>(), hn::LoadU(hn::Rebind<uint16_t, DD>(), &p->bits));
  return hn::PromoteTo(DD(), hn::BitCast(f, hn::ShiftLeft<16>(bits)));
}

template <class T>
double block_square_sum(const T* x, int64_t n) {
  constexpr int64_t kSums = 32, lanes = int64_t(HWY_LANES(double)), vectors = kSums / lanes;
  hn::Vec<DD> acc[vectors];
  for (int64_t v = 0; v < vectors; v++) acc[v] = hn::Zero(DD());
  auto add = [&](const T* from) HWY_ATTR {
    for (int64_t j = 0; j < kSums; j += 64 / int64_t(sizeof(T))) ask_ahead(from + j);
    for (int64_t v = 0; v < vectors; v++) {
      const auto e = load_double(from + v * lanes);
      acc[v] = hn::MulAdd(e, e, acc[v]);
    }
  };
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) add(x + i);
  if (i < n) {
    T tail[kSums] = {};
    std::memcpy(static_cast<void*>(tail), x + i, size_t(n - i) * sizeof(T));
    add(tail);
  }
  HWY_ALIGN double sums[kSums];
  for (int64_t v = 0; v < vectors; v++) hn::Store(acc[v], DD(), sums + v * lanes);
  double total = 0;
  for (double s : sums) total += s;
  return total;
}

// Elements whose exponent bits are all ones: infinities and NaN.
template <class U>
int64_t count_row(const U* x, int64_t n, U exponent) {
  const hn::ScalableTag<U> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto mask = hn::Set(d, exponent);
  int64_t count = 0, i = 0;
  for (; i + lanes <= n; i += lanes)
    count += int64_t(hn::CountTrue(d, hn::Eq(hn::And(hn::LoadU(d, x + i), mask), mask)));
  for (; i < n; i++) count += (x[i] & exponent) == exponent;
  return count;
}

}  // namespace

void add(const AddArgs& p, int64_t begin, int64_t end) {
  p.a.dtype == DType::bf16 ? add_with<bf16>(p, begin, end) : add_with<float>(p, begin, end);
}
void cast(const CastArgs& p, int64_t begin, int64_t end) {
  if (p.src.dtype == DType::f32)
    p.dst.dtype == DType::bf16 ? convert<float, bf16>(p, begin, end) : convert<float, f16>(p, begin, end);
  else
    p.src.dtype == DType::bf16 ? convert<bf16, float>(p, begin, end) : convert<f16, float>(p, begin, end);
}
void square_sums(const SquareSumsArgs& p, int64_t begin, int64_t end) {
  const int64_t n = p.x.numel();
  for (int64_t b = begin; b < end; b++) {
    const int64_t first = b * kFlatBlock, size = std::min(kFlatBlock, n - first);
    p.sums.as<double>()[b] = p.x.dtype == DType::bf16 ? block_square_sum(p.x.as<bf16>() + first, size)
                                                      : block_square_sum(p.x.as<float>() + first, size);
  }
}
int64_t count_nonfinite(DType type, const std::byte* x, int64_t n) {
  switch (type) {
    case DType::f64:
      return count_row(reinterpret_cast<const uint64_t*>(x), n, uint64_t(0x7ff) << 52);
    case DType::f32:
      return count_row(reinterpret_cast<const uint32_t*>(x), n, uint32_t(0x7f800000));
    case DType::bf16:
      return count_row(reinterpret_cast<const uint16_t*>(x), n, uint16_t(0x7f80));
    default:
      require(type == DType::f16, "count_nonfinite of an integer type");
      return count_row(reinterpret_cast<const uint16_t*>(x), n, uint16_t(0x7c00));
  }
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(add);
HWY_EXPORT(cast);
HWY_EXPORT(square_sums);
HWY_EXPORT(count_nonfinite);

int64_t scratch_bytes(const AddArgs&, const Context&) {
  return 0;
}
int64_t scratch_bytes(const CastArgs&, const Context&) {
  return 0;
}
int64_t scratch_bytes(const ZeroArgs&, const Context&) {
  return 0;
}
int64_t scratch_bytes(const SquareSumsArgs&, const Context&) {
  return 0;
}
int64_t scratch_bytes(const CountNonfiniteArgs&, const Context&) {
  return 0;
}

void launch(const AddArgs& p, const Tensor&, const Context& ctx) {
  parallel_for(ctx, p.a.numel(), kGrainElements, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(add)(p, begin, end);
  });
}
namespace {
void cast_run(const CastArgs& p, int64_t begin, int64_t end) {
  const int64_t size = size_of(p.src.dtype);
  if (p.src.dtype == p.dst.dtype)
    std::memmove(p.dst.data + begin * size, p.src.data + begin * size, size_t((end - begin) * size));
  else
    HWY_DYNAMIC_DISPATCH(cast)(p, begin, end);
}

// Dims from the last up to which both operands lie in one piece; its elements.
int64_t joint_run(const Tensor& a, const Tensor& b, int& outer) {
  int64_t run = 1;
  for (outer = a.shape.rank; outer > 0; outer--) {
    const auto d = size_t(outer - 1);
    if (a.shape[outer - 1] != 1 && (a.stride[d] != run || b.stride[d] != run)) break;
    run *= a.shape[outer - 1];
  }
  return run;
}
// Element offset of run i of the first `outer` dims.
int64_t run_offset(const Tensor& t, int outer, int64_t i) {
  int64_t offset = 0;
  for (int d = outer; d-- > 0; i /= t.shape[d]) offset += i % t.shape[d] * t.stride[size_t(d)];
  return offset;
}
}  // namespace

void launch(const CastArgs& p, const Tensor&, const Context& ctx) {
  if (p.src.numel() == 0) return;
  if (p.src.contiguous() && p.dst.contiguous())
    return parallel_for(ctx, p.src.numel(), kGrainElements,
                        [&](int64_t begin, int64_t end, int) { cast_run(p, begin, end); });
  int outer = 0;
  const int64_t run = joint_run(p.src, p.dst, outer);
  parallel_for(ctx, p.src.numel() / run, std::max<int64_t>(1, kGrainElements / run),
               [&](int64_t begin, int64_t end, int) {
                 CastArgs one = p;
                 for (int64_t i = begin; i < end; i++) {
                   one.src.data = p.src.data + run_offset(p.src, outer, i) * size_of(p.src.dtype);
                   one.dst.data = p.dst.data + run_offset(p.dst, outer, i) * size_of(p.dst.dtype);
                   cast_run(one, 0, run);
                 }
               });
}
void launch(const ZeroArgs& p, const Tensor&, const Context& ctx) {
  parallel_for(ctx, p.y.bytes(), 4 * kGrainElements, [&](int64_t begin, int64_t end, int) {
    std::memset(p.y.data + begin, 0, size_t(end - begin));
  });
}
void launch(const SquareSumsArgs& p, const Tensor&, const Context& ctx) {
  parallel_for(ctx, p.sums.numel(), kGrainElements / kFlatBlock, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(square_sums)(p, begin, end);
  });
}
void launch(const CountNonfiniteArgs& p, const Tensor&, const Context& ctx) {
  const Tensor& x = p.x;
  if (x.numel() == 0) return;
  // Outer dims are walked as one index; a contiguous tensor is one row, cut by elements.
  const int64_t size = size_of(x.dtype), cols = x.contiguous() ? x.numel() : x.shape[x.shape.rank - 1];
  const int64_t outer = x.numel() / cols;
  std::atomic<int64_t> total = 0;  // integers: the order of additions is free
  auto row = [&](int64_t i) {
    int64_t at = 0;
    for (int d = x.shape.rank - 2; d >= 0; d--) at += i % x.shape[d] * x.stride[size_t(d)], i /= x.shape[d];
    return x.data + at * size;
  };
  if (outer == 1)
    parallel_for(ctx, cols, kGrainElements, [&](int64_t begin, int64_t end, int) {
      total += HWY_DYNAMIC_DISPATCH(count_nonfinite)(x.dtype, x.data + begin * size, end - begin);
    });
  else
    parallel_for(ctx, outer, row_grain(cols), [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; i++)
        total += HWY_DYNAMIC_DISPATCH(count_nonfinite)(x.dtype, row(i), cols);
    });
  *p.count.as<int64_t>() += total;
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
