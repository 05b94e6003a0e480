// Matrix products of bf16 in tile registers (AMX), where the processor has them: a dot product instruction of
// 16 x 16 sums over 32 values each, sixteen times what AVX512-BF16's does.
//
// op(b) is packed once by all threads, in panels of 32 columns, at most 12 MB of them at a time; op(a) goes
// by in strips of 32 rows, packed by the task that takes them. A task is a block of rows with all (or a share
// of) the panels; threads take tasks in turn, so that a core slowed by a neighbour does not hold up the
// others:
//
//   for block of the summed dim (at most 3,072: nearly always one)
//     for block of columns (packed panels of at most 12 MB): pack them
//       tasks: pack their rows; for panel of b; for strip of a: 32 x 32 sums in four of eight tiles
//
// One thread with few enough rows (a product of a group, for one) packs all of them and then each panel when
// its strips come, from lines that were asked for during the panels before.
//
// A bf16 c of more than 4 MB, too large for what reads it to find it in L2, is written past the caches:
// reading its lines first, as stores do, took 20 to 30 % of a product with a sum of 384.
//
// What ends a tile (bias, residual, rounding, the store) is done between the tile instructions of the next
// one, in units that those leave idle.
//
// An element of c is one chain of additions in ascending k whatever the thread count or the place of its row
// (zeros behind the edges add nothing), so neither more threads nor a batch cut into rows change a bit of it.
#pragma once
#include "device/cpu/gemm.h"

namespace trireme::cpu::tiles {

inline constexpr int64_t kStrip = 32, kPanel = 32;  // rows of a, columns of b: two tiles each
inline constexpr int64_t kStep = 32;                // values of k that one instruction sums
// Packed strips and panels: [steps][2 tiles][16 rows of 64 bytes].
inline constexpr int64_t kStepBytes = 2 * 16 * 64;

// sums[32][32] = from[32][32] (0 if null) + a . b over `steps` of 32.
struct Tile {
  const std::byte *a = nullptr, *b = nullptr;  // a packed strip and a panel
  int64_t steps = 0;
  const float* from = nullptr;
  int64_t ld_from = 0;
  float* sums = nullptr;
  gemm::Lines soon[3];  // asked for meanwhile
  int64_t wanted = 0;
};

struct Kernels {
  // Tiles of 16 rows of 64 bytes from here on, and none any more: of the calling thread.
  void (*begin)();
  void (*end)();
  // Ends the tile before this one (`before`, sums of 32 columns; null: none) as it goes. c of bf16 | f32.
  void (*multiply_bf16)(const Tile&, const gemm::Finish* before);
  void (*multiply_f32)(const Tile&, const gemm::Finish* before);
  void (*finish_bf16)(const gemm::Finish&);
  void (*finish_f32)(const gemm::Finish&);
  // Panels, `panel` bytes apart, from `cols` rows of b^T (one panel) | from `depth` rows of b; zeros beyond.
  void (*pack_transposed)(const std::byte* src, int64_t row, int64_t cols, int64_t depth, std::byte* dst);
  void (*pack_rows)(const std::byte* src, int64_t row, int64_t cols, int64_t depth, std::byte* dst,
                    int64_t panel);
  // Strips, `strip` bytes apart, from `rows` rows of a | from the first `rows` columns of a^T; zeros beyond.
  void (*pack_a)(const std::byte* src, int64_t row, int64_t rows, int64_t depth, std::byte* dst,
                 int64_t strip);
  void (*pack_a_transposed)(const std::byte* src, int64_t row, int64_t rows, int64_t depth, std::byte* dst,
                            int64_t strip);
};
// Null where they were not compiled, and where processor or kernel have no tile registers.
const Kernels* kernels();  // gemm_amx.cc

}  // namespace trireme::cpu::tiles

namespace trireme::cpu {

int64_t tile_matmul_scratch_bytes(const MatmulArgs&, const Context&);
// ... of any with a sum as long or shorter.
// c_bytes: of all results, where this is one product of a launch of many.
void tile_matmul(const MatmulArgs&, std::byte* scratch, const Context&, int64_t c_bytes = 0);

}  // namespace trireme::cpu
