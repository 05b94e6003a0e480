// bf16 products on processors without bf16 arithmetic: blocks of a and b are widened to f32, multiplied
// there, and the epilogue rounds once. A block of b [K, <= kBlock] serves all blocks of a [<= kBlock, K], so
// widening costs about 1/kBlock of the arithmetic; scratch is two such panels and one block of c.
#include "base/rounding.h"
#include "device/cpu/matmul.h"

namespace trireme::cpu {
namespace {

constexpr int64_t kBlock = 512;

// Scratch: panel of a | panel of b | block of c | oneDNN's.
struct Layout {
  explicit Layout(const MatmulArgs& p)
      : rows(std::min(kBlock, rows_of(p))), cols(std::min(kBlock, cols_of(p))), depth(depth_of(p)) {
    b = round_up(rows * depth * 4, 64);
    c = b + round_up(depth * cols * 4, 64);
    inner = c + round_up(rows * cols * 4, 64);
  }
  int64_t rows, cols, depth;
  int64_t b, c, inner;  // offsets in bytes
};

Tensor f32_panel(std::byte* at, bool stored_transposed, int64_t rows, int64_t cols) {
  return Tensor(at, stored_transposed ? Shape{cols, rows} : Shape{rows, cols}, DType::f32);
}

MatmulArgs inner_product(const MatmulArgs& p, const Layout& l, std::byte* scratch, int64_t rows,
                         int64_t cols) {
  MatmulArgs inner;
  inner.trans_a = p.trans_a, inner.trans_b = p.trans_b;
  inner.a = f32_panel(scratch, p.trans_a, rows, l.depth);
  inner.b = f32_panel(scratch + l.b, p.trans_b, l.depth, cols);
  inner.c = Tensor(scratch + l.c, {rows, cols}, DType::f32);
  return inner;
}

// Rows of bf16 (row stride free) to dense f32.
void widen_rows(const Tensor& dst, const Tensor& src, const Context& ctx) {
  int64_t cols = src.shape[1];
  parallel_for(ctx, src.shape[0], 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; r++) {
      const bf16* s = src.as<bf16>() + r * src.stride[0];
      float* d = dst.as<float>() + r * cols;
      for (int64_t j = 0; j < cols; j++) d[j] = float(s[j]);
    }
  });
}

// c = round(product + bias + residual + c): c and residual of type T at column j0.
template <class T>
void finish(const MatmulArgs& p, const float* product, int64_t i0, int64_t j0, int64_t rows, int64_t cols,
            const Context& ctx) {
  parallel_for(ctx, rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; r++) {
      T* c = p.c.as<T>() + (i0 + r) * p.c.stride[0] + j0;
      const T* residual = p.residual ? p.residual.as<T>() + (i0 + r) * p.residual.stride[0] + j0 : nullptr;
      for (int64_t j = 0; j < cols; j++) {
        float v = product[r * cols + j];
        if (p.bias) v += float(p.bias.as<bf16>()[j0 + j]);
        if (residual) v += float(residual[j]);
        if (p.accumulate) v += float(c[j]);
        c[j] = T(v);
      }
    }
  });
}

}  // namespace

int64_t matmul_in_f32_scratch_bytes(const MatmulArgs& p, const Context& ctx, MatmulCache& cache) {
  if (p.a.dtype != DType::bf16) run_failed("oneDNN has no f32 matrix product on this processor");
  Layout l(p);
  int64_t inner = 0;
  // Addresses do not matter here; a non-null one marks operands as present.
  auto* somewhere = reinterpret_cast<std::byte*>(64);
  for (int64_t rows : {l.rows, rows_of(p) % l.rows})
    for (int64_t cols : {l.cols, cols_of(p) % l.cols})
      if (rows > 0 && cols > 0)
        inner = std::max(inner, matmul_scratch_bytes(inner_product(p, l, somewhere, rows, cols), ctx, cache));
  return l.inner + inner;
}

void matmul_in_f32(const MatmulArgs& p, std::byte* scratch, const Context& ctx, MatmulCache& cache) {
  Layout l(p);
  for (int64_t j0 = 0; j0 < cols_of(p); j0 += l.cols) {
    int64_t cols = std::min(l.cols, cols_of(p) - j0);
    widen_rows(f32_panel(scratch + l.b, p.trans_b, l.depth, cols), p.b.narrow(p.trans_b ? 0 : 1, j0, cols),
               ctx);
    for (int64_t i0 = 0; i0 < rows_of(p); i0 += l.rows) {
      int64_t rows = std::min(l.rows, rows_of(p) - i0);
      widen_rows(f32_panel(scratch, p.trans_a, rows, l.depth), p.a.narrow(p.trans_a ? 1 : 0, i0, rows), ctx);
      MatmulArgs inner = inner_product(p, l, scratch, rows, cols);
      matmul(inner, scratch + l.inner, ctx, cache);
      if (p.c.dtype == DType::bf16)
        finish<bf16>(p, inner.c.as<float>(), i0, j0, rows, cols, ctx);
      else
        finish<float>(p, inner.c.as<float>(), i0, j0, rows, cols, ctx);
    }
  }
}

}  // namespace trireme::cpu
