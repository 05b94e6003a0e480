// What the files of matmul_few_rows share: sums of a block of columns, by Highway or by AVX512-BF16.
#pragma once
#include "device/cpu/matmul.h"

namespace trireme::cpu {

inline constexpr int64_t kFewCols = 16;  // of a block

// Rows of a [rows, k] and of b, from the first of the block on; strides in elements.
//
// b comes from memory through up to sixteen streams at once, as many as its rows in a tile, each a few KB
// long: too many and too short for the processor to foresee. So while a block is computed, the lines of the
// next one are asked for, one behind the other: two threads went from 17 to 65-72 GB/s (bf16, K = 768, 1 to 4
// rows), where a plain read reached 77.
struct FewRows {
  const void *a, *b;
  int64_t a_row, b_row, rows, k;
};
// sums[r * kFewCols + j] = a[r] . b[j] for j < cols <= kFewCols, in f32.
using FewRowsDots = void (*)(const FewRows&, int64_t cols, float* sums);

// a and b bf16, by vdpbf16ps; null where this build or this processor has it not.
FewRowsDots few_rows_dots_bf16();

// With dots = null by f32: bf16 operands are widened first, into scratch.
int64_t matmul_few_rows_scratch_bytes(const MatmulArgs&, FewRowsDots dots);
void matmul_few_rows(const MatmulArgs&, std::byte* scratch, const Context&, FewRowsDots dots);

}  // namespace trireme::cpu
