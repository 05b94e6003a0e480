// f32 matrix products for processors with AVX2 and FMA and no more, whose core another program may share.
//
// Both operands are packed: op(b) by all threads in panels of 24 columns, at most 12 MB of them at a time,
// op(a) in strips of 4 rows by the task that takes them. A task is a block of rows with all panels: of 192,
// at last of fewer, for threads take tasks in turn, so that a core slowed by a neighbour does not hold up the
// others:
//
//   for block of the summed dim, for block of columns (packed panels of at most 12 MB): pack them
//     tasks: for piece of the block of the summed dim (at most 384): pack the task's rows
//              for panel of b; for strip of a: 4 x 24 sums in 12 of 16 registers, added to c
//
// A panel (36 KB) comes from the last cache once a task, and its lines are asked for during the panel before:
// with tasks of 96 rows that did not wait products with sums of 3,072 took 10 % longer.
//
// A tile of 4 x 24 sums takes 19 instructions for 12 multiply-adds (6 x 16 takes 20), and nothing else is in
// its loop: while another thread shares the core, decoding is what binds, and every instruction counts.
//
// An element of c is a sum of its pieces' sums in ascending order, each a chain of additions in ascending k;
// the pieces depend on K alone. So neither threads nor a batch cut into rows change a bit of it.
#pragma once
#include "device/cpu/launch.h"

namespace trireme::cpu::packed {

inline constexpr int64_t kStrip = 4, kPanel = 24;  // rows of a, columns of b
inline constexpr int64_t kStep = 8;                // packed depths are multiples of it, zeros at the end

// Floats from a packed strip or panel of so many steps to the next. The line between them keeps them from
// starting at equal offsets of a page, where those that are written together would push each other out of
// L1.
inline int64_t strip_floats(int64_t steps) {
  return steps * kStrip + 16;
}
inline int64_t panel_floats(int64_t steps) {
  return steps * kPanel + 16;
}

// c = sums + bias + residual + c, of the rows and columns of one panel of b: strips of a [steps][4], the
// panel [steps][24].
struct Panel {
  const float *a = nullptr, *b = nullptr;
  int64_t rows = 0, cols = 0, steps = 0;  // of c, cols at most 24; steps a multiple of kStep
  float* c = nullptr;
  const float *bias = nullptr, *residual = nullptr;  // optional
  int64_t ld_c = 0, ld_residual = 0;                 // floats
  bool add = false;                                  // c itself
  bool more = false;                                 // another panel lies behind: ask for its lines
};

struct Kernels {
  void (*multiply)(const Panel&);
  // Strips of `rows` rows | of the first `rows` columns of a^T; zeros beyond the edges. ld: floats.
  void (*pack_a)(const float* src, int64_t ld, int64_t rows, int64_t depth, float* dst);
  void (*pack_a_transposed)(const float* src, int64_t ld, int64_t rows, int64_t depth, float* dst);
  // Panels of `cols` columns | of the first `cols` rows of b^T; zeros beyond the edges.
  void (*pack_b)(const float* src, int64_t ld, int64_t cols, int64_t depth, float* dst);
  void (*pack_b_transposed)(const float* src, int64_t ld, int64_t cols, int64_t depth, float* dst);
};
// Null where they were not compiled. What x86-64 processor lacks AVX2 or FMA has no device
// (require_processor()).
const Kernels* kernels();  // gemm_avx2.cc

}  // namespace trireme::cpu::packed

namespace trireme::cpu {

// ... of this product and of any with a shorter sum.
int64_t packed_matmul_scratch_bytes(const MatmulArgs&, const Context&);
// lower: c is square, and only its elements on and below the diagonal are written for certain. Each has the
// bits that it has without.
void packed_matmul(const MatmulArgs&, std::byte* scratch, const Context&, bool lower = false);

}  // namespace trireme::cpu
