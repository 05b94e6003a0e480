// Matrix products of our own, epilogues inside: bf16 for processors with AVX512-BF16, f32 for those with
// AVX-512. (With tile registers gemm_tiles.h, with AVX2 and FMA alone gemm_packed.h.)
//
// op(b) is cut into panels of 64 columns, op(a) into strips of 6 rows. A panel is packed just before its
// strips need it, so it comes from L2 while rows of a stream by:
//
//   for block of rows (all of the thread's, or 384 where a is stored transposed; the first panel's pass packs
//   it)
//     for block of the summed dim (kc)
//       for panel of b: pack it; for strip of a: 6 x 64 sums in 24 registers; epilogue after the last kc
//
// Where a is packed and rows are many, the panels of a block of the summed dim are packed once, by all
// threads, before the rows begin.
//
// Threads own rows of c, and where sums are of one block take panels from each other at the end; where rows
// are few each takes a share of the panels for all rows.
//
// An element of c is one chain of additions in ascending k whatever the thread count or the place of its row,
// so neither more threads nor a batch cut into rows change a bit of it.
//
// A *unit* is what one lane multiplies at a step: one f32, or two bf16 neighbours along the summed dim.
#pragma once
#include "device/cpu/launch.h"

namespace trireme::cpu::gemm {

inline constexpr int64_t kStrip = 6, kPanel = 64;

// Bytes of a packed strip of `units`. The line between strips keeps them from starting at equal offsets of a
// page, where eight of them, written together, would push each other out of L1.
inline int64_t strip_bytes(int64_t units) {
  return units * kStrip * 4 + 64;
}

// Lines of memory that will be needed soon: `lines` of 64 bytes from each of `rows`, `row` bytes apart.
struct Lines {
  const std::byte* data = nullptr;
  int64_t row = 0, rows = 0, lines = 0;
};

// sums[rows][64] = from[rows][64] (0 if null) + a[rows][units] . b[units][64]. Lines are asked for one by one
// as the sums proceed: a burst of requests would hold up the loads of b behind it.
struct Tile {
  const std::byte* a = nullptr;
  int64_t a_row = 0, a_step = 0;  // bytes to the next row, to the next unit
  const std::byte* b = nullptr;   // a packed panel: [units][64], or as the kernels order it
  int64_t units = 0;
  bool half = false;  // bf16: after the units one more element of a; its unit of b holds a 0 beside it
  const float* from = nullptr;
  int64_t ld_from = 0;  // floats
  float* sums = nullptr;
  int64_t ld_sums = 0;
  Lines soon[4];
  int64_t wanted = 0;  // how many of them
};

// c = round(sums + bias + residual + c): a tile, or what of it lies inside the matrix. A tile of all 64
// columns goes there from registers, without `sums`.
struct Finish {
  const float* sums = nullptr;
  int64_t ld_sums = 0;
  int64_t rows = 0, cols = 0;  // at most 6 x 64
  std::byte* c = nullptr;
  const std::byte* bias = nullptr;      // [cols], of the operands' type
  const std::byte* residual = nullptr;  // like c
  int64_t c_row = 0, residual_row = 0;  // bytes
  bool accumulate = false;
  bool past_caches = false;  // tile registers only: whole lines of c go to memory, none is read before
};

struct Kernels {
  int64_t element, group;           // bytes of an element; elements in a unit
  int64_t longest, longest_packed;  // bytes of a column of a panel, at most; of one beside packed rows of a
  int64_t packed_rows;              // of a, where each thread packs its own panels
  // By rows - 1.
  void (*multiply[kStrip])(const Tile&);
  void (*multiply_to_same[kStrip])(const Tile&,
                                   const Finish&);              // of 64 columns, into c of the operands' type
  void (*multiply_to_f32[kStrip])(const Tile&, const Finish&);  // c f32
  // Columns [0, rows) of src, `depth` rows of `row` bytes, as strips of strip_bytes(): [strip][units][6],
  // zeros beyond the edges.
  void (*pack_strips)(const std::byte* src, int64_t row, int64_t rows, int64_t depth, std::byte* dst);
  // A panel from rows of b^T (columns of the product) | from rows of b; columns beyond `cols` are zeros.
  void (*pack_transposed)(const std::byte* src, int64_t row, int64_t cols, int64_t depth, std::byte* dst);
  void (*pack_rows)(const std::byte* src, int64_t row, int64_t cols, int64_t depth, std::byte* dst);
  void (*finish_same)(const Finish&);  // c of the operands' type
  void (*finish_f32)(const Finish&);   // c f32
};
// Null where they were not compiled. Ask the processor first: AVX512-BF16 for bf16, for f32 AVX-512 is
// enough.
const Kernels* avx512_kernels(DType);  // gemm_avx512bf16.cc

// Those that products of this type go by on this processor; null: none, or those of gemm_packed.h.
const Kernels* kernels(DType);

// What a processor may have beyond its base. Products use the newest that it has up to this; tests of what
// other processors run lower it.
enum class Instructions { avx2, avx512, tiles };  // tiles: gemm_tiles.h
Instructions& newest();

}  // namespace trireme::cpu::gemm

namespace trireme::cpu {

// Does our own product take this problem here, and does it pay (measured in training steps)? A function of
// shapes, types, strides and threads.
bool takes_own_matmul(const MatmulArgs&, const Context&);
// Columns that go by together: cuts of op(b) elsewhere cost a narrow panel more.
int64_t own_matmul_panel(DType);
int64_t own_matmul_scratch_bytes(const MatmulArgs&, const Context&);
// ... of this product and of any with a shorter sum. For at most 1,536 rows of a packed a.
int64_t own_matmul_most_scratch_bytes(const MatmulArgs&, const Context&);
// c_bytes: of all results, where this is one product of a launch of many: too many for the caches, they go
// past them (tile registers only).
void own_matmul(const MatmulArgs&, std::byte* scratch, const Context&, int64_t c_bytes = 0);
// Our own product, whether it pays or not, for a square c whose upper triangle is not needed. It writes at
// least the elements on and below the diagonal, with the same bits. Kernels without triangles write all of
// them.
bool has_own_matmul(DType);
void own_lower_matmul(const MatmulArgs&, std::byte* scratch, const Context&);

}  // namespace trireme::cpu
