// c[M,N] = a[M,K] b[N,K]^T for few rows of a: what a decoding step multiplies, one row a text.
//
// With M rows each weight is used in 2 M FLOPs, so the product is bound by the memory that holds b: b streams
// past once, kFewCols of its rows at a time, and a (M K elements) stays in L1 and L2. bf16 goes to
// matmul_few_rows_avx512bf16.cc where the processor has its dot products, else a is widened to f32 first.
// oneDNN repacks b into the layout of its tiles first, which at these M costs more than the product.
//
// Each element is one vector of partial sums along K in ascending order and one sum over its lanes, in f32: a
// row's bits depend on that row and b alone, not on M, the neighbouring rows or threads. So texts that are
// decoded together come out as they do one by one.
#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/matmul_few_rows.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/matmul_few_rows.h"
#include "device/cpu/rows.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

// R rows of a by C of b, from row r0 and column j0 of the block on.
template <int R, int C, class T>
HWY_INLINE void tile(const FewRows& f, int64_t r0, int64_t j0, float* sums) {
  const Rows<const float> a{static_cast<const float*>(f.a) + r0 * f.a_row, f.a_row};
  const Rows<const T> b{static_cast<const T*>(f.b) + j0 * f.b_row, f.b_row};
  VF acc[R][C];
  for (int r = 0; r < R; r++)
    for (int j = 0; j < C; j++) acc[r][j] = fill(0);
  each_vector(f.k, [&](int64_t i, auto part) HWY_ATTR {
    VF right[C];
    for (int j = 0; j < C; j++) right[j] = load(b[j] + i, part);
    if (r0 == 0)  // the next block's part of b
      for (int j = 0; j < C; j++) __builtin_prefetch(b[kFewCols] + i * C + j * kLanes);
    for (int r = 0; r < R; r++) {
      const VF left = load(a[r] + i, part);
      for (int j = 0; j < C; j++) acc[r][j] = hn::MulAdd(left, right[j], acc[r][j]);
    }
  });
  for (int r = 0; r < R; r++)
    for (int j = 0; j < C; j++) sums[(r0 + r) * kFewCols + j0 + j] = sum(acc[r][j]);
}

template <int C, class T>
void columns(const FewRows& f, int64_t j0, float* sums) {
  int64_t r = 0;
  for (; r + 4 <= f.rows; r += 4) tile<4, C, T>(f, r, j0, sums);
  if (f.rows - r == 3) tile<3, C, T>(f, r, j0, sums);
  if (f.rows - r == 2) tile<2, C, T>(f, r, j0, sums);
  if (f.rows - r == 1) tile<1, C, T>(f, r, j0, sums);
}

// a is f32. More columns at once for few rows: eight chains of additions keep a core's multipliers busy.
template <class T>
void dots(const FewRows& f, int64_t cols, float* sums) {
  int64_t j = 0;
  if (f.rows <= 2)
    for (; j + 8 <= cols; j += 8) columns<8, T>(f, j, sums);
  for (; j + 4 <= cols; j += 4) columns<4, T>(f, j, sums);
  for (; j < cols; j++) columns<1, T>(f, j, sums);
}

// Columns [n, n + cols) of c: bias, residual and c itself are added in f32, one rounding.
template <class T, class Out>
void finish(const MatmulArgs& p, int64_t n, int64_t cols, const float* sums) {
  const Rows<const Out> residual = rows_of<const Out>(p.residual);
  const Rows<Out> c = rows_of<Out>(p.c);
  for (int64_t r = 0; r < p.c.shape[0]; r++)
    each_vector(cols, [&](int64_t j, auto part) HWY_ATTR {
      VF v = load(sums + r * kFewCols + j, part);
      if (p.bias) v = hn::Add(v, load(p.bias.as<T>() + n + j, part));
      if (residual) v = hn::Add(v, load(residual[r] + n + j, part));
      if (p.accumulate) v = hn::Add(v, load(c[r] + n + j, part));
      store(v, c[r] + n + j, part);
    });
}

template <class T, class Out>
void all(const MatmulArgs& p, FewRows f, FewRowsDots dots_of, int64_t begin, int64_t end) {
  HWY_ALIGN float sums[kFewRows * kFewCols];
  for (int64_t n = begin; n < end; n += kFewCols) {
    const int64_t cols = std::min(kFewCols, end - n);
    f.b = rows_of<const T>(p.b)[n];
    dots_of ? dots_of(f, cols, sums) : dots<T>(f, cols, sums);
    finish<T, Out>(p, n, cols, sums);
  }
}

}  // namespace

// Rows of bf16 widened to dense f32, once for all columns.
void widen_rows(const Tensor& a, float* dst) {
  const Rows<const bf16> rows = rows_of<const bf16>(a);
  const int64_t k = a.shape[1];
  for (int64_t m = 0; m < a.shape[0]; m++)
    each_vector(
        k, [&](int64_t i, auto part) HWY_ATTR { store(load(rows[m] + i, part), dst + m * k + i, part); });
}

// Columns [begin, end) of c.
void few_rows(const MatmulArgs& p, const FewRows& f, FewRowsDots dots_of, int64_t begin, int64_t end) {
  if (p.a.dtype == DType::f32)
    all<float, float>(p, f, dots_of, begin, end);
  else if (p.c.dtype == DType::f32)
    all<bf16, float>(p, f, dots_of, begin, end);
  else
    all<bf16, bf16>(p, f, dots_of, begin, end);
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(widen_rows);
HWY_EXPORT(few_rows);

bool has_few_rows(const MatmulArgs& p) {
  bool type = p.a.dtype == DType::f32 || p.a.dtype == DType::bf16;
  return type && p.trans_b && !p.trans_a && p.c.shape[0] <= kFewRows;
}

int64_t matmul_few_rows_scratch_bytes(const MatmulArgs& p, FewRowsDots dots) {
  return p.a.dtype == DType::f32 || dots ? 0 : p.a.numel() * int64_t(sizeof(float));
}
void matmul_few_rows(const MatmulArgs& p, std::byte* scratch, const Context& ctx, FewRowsDots dots) {
  FewRows f{.a = p.a.data,
            .b = p.b.data,
            .a_row = p.a.stride[0],
            .b_row = p.b.stride[0],
            .rows = p.c.shape[0],
            .k = p.a.shape[1]};
  if (p.a.dtype != DType::f32 && !dots) {
    HWY_DYNAMIC_DISPATCH(widen_rows)(p.a, reinterpret_cast<float*>(scratch));
    f.a = scratch, f.a_row = f.k;
  }
  int64_t grain = (row_grain(f.k) + kFewCols - 1) / kFewCols * kFewCols;
  parallel_for(ctx, p.c.shape[1], grain, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(few_rows)(p, f, dots, begin, end);
  });
}

namespace {
FewRowsDots dots_of(const MatmulArgs& p) {
  return p.a.dtype == DType::bf16 ? few_rows_dots_bf16() : nullptr;
}
}  // namespace
int64_t matmul_few_rows_scratch_bytes(const MatmulArgs& p) {
  return matmul_few_rows_scratch_bytes(p, dots_of(p));
}
void matmul_few_rows(const MatmulArgs& p, std::byte* scratch, const Context& ctx) {
  matmul_few_rows(p, scratch, ctx, dots_of(p));
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
