// db[C] (+)= sum over the rows of dy [N, C], and the second half of every such sum: adding the blocks in
// order.
//
// Rows go eight at a time, so a column's f32 sum is loaded and stored once for eight elements; a block's sums
// stay in L1. The order is fixed by N alone (rows.h, RowBlocks). Traffic: dy once.
#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/column_sum.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/launch.h"
#include "device/cpu/partials.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

template <int R, class T>
HWY_INLINE void add_rows(const Rows<const T>& dy, int64_t n, int64_t cols, float* sums) {
  const T* row[R];
  for (int r = 0; r < R; r++) row[r] = dy[n + r];
  each_vector(cols, [&](int64_t c, auto part) HWY_ATTR {
    VF s = load(sums + c, part);
    for (int r = 0; r < R; r++) s = hn::Add(s, load(row[r] + c, part));
    store(s, sums + c, part);
  });
}

template <class T>
void sum_blocks(const ColumnSumArgs& a, float* partial, int64_t begin, int64_t end) {
  const Rows<const T> dy = rows_of<const T>(a.dy);
  const int64_t cols = a.dy.shape[1];
  const RowBlocks blocks(a.dy.shape[0], cols);
  for (int64_t i = begin; i < end; i++) {
    float* sums = partial + i * blocks.padded;
    std::memset(sums, 0, size_t(blocks.padded) * sizeof(float));
    int64_t n = blocks.begin(i), last = blocks.begin(i + 1);
    for (; n + 8 <= last; n += 8) add_rows<8>(dy, n, cols, sums);
    for (; n < last; n++) add_rows<1>(dy, n, cols, sums);
  }
}

// Columns [begin, end) of out (+)= the blocks' rows, first to last.
template <class T>
void combine(const Partials& p, T* out, int64_t begin, int64_t end) {
  each_vector(end - begin, [&](int64_t i, auto part) HWY_ATTR {
    const int64_t c = begin + i;
    VF s = fill(0);
    for (int64_t b = 0; b < p.blocks; b++) s = hn::Add(s, load(p.data + b * p.stride + c, part));
    if (p.accumulate) s = hn::Add(load(out + c, part), s);
    store(s, out + c, part);
  });
}

}  // namespace

void column_sum(const ColumnSumArgs& a, float* partial, int64_t begin, int64_t end) {
  a.dy.dtype == DType::bf16 ? sum_blocks<bf16>(a, partial, begin, end)
                            : sum_blocks<float>(a, partial, begin, end);
}
void combine_partials(const Partials& p, const Tensor& out, int64_t begin, int64_t end) {
  out.dtype == DType::bf16 ? combine(p, out.as<bf16>(), begin, end) : combine(p, out.as<float>(), begin, end);
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(column_sum);
HWY_EXPORT(combine_partials);

void add_partials(const Context& ctx, const Partials& p, const Tensor& out) {
  // Whole cache lines of columns for each thread: their bits cannot depend on the split.
  parallel_for(ctx, out.numel(), 1024, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(combine_partials)(p, out, begin, end);
  });
}

int64_t scratch_bytes(const ColumnSumArgs& a, const Context&) {
  return RowBlocks(a.dy.shape[0], a.dy.shape[1]).scratch_bytes(1);
}
void launch(const ColumnSumArgs& a, const Tensor& scratch, const Context& ctx) {
  const RowBlocks blocks(a.dy.shape[0], a.dy.shape[1]);
  float* partial = reinterpret_cast<float*>(scratch.data);
  parallel_for(ctx, blocks.blocks, 1, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(column_sum)(a, partial, begin, end);
  });
  add_partials(ctx, {partial, blocks.blocks, blocks.padded, a.accumulate}, a.db);
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
