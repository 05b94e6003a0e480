// Sums over rows that no thread count changes: blocks of rows first, then the blocks in order.
#pragma once
#include "device/cpu/launch.h"
#include "device/cpu/rows.h"

namespace trireme::cpu {

// How N rows are cut: blocks of whole kBlockRows, at most kMaxBlocks of them, by N alone. Each block's sums
// are a row of f32 scratch, padded to whole cache lines so that threads never share one.
struct RowBlocks {
  static constexpr int64_t kBlockRows = 32, kMaxBlocks = 64;
  int64_t rows, block_rows, blocks, padded;  // padded: columns
  RowBlocks(int64_t n, int64_t cols) : rows(n), padded((cols + 15) / 16 * 16) {
    int64_t per = (n + kMaxBlocks - 1) / kMaxBlocks;
    block_rows = std::max(kBlockRows, (per + kBlockRows - 1) / kBlockRows * kBlockRows);
    blocks = (n + block_rows - 1) / block_rows;
  }
  int64_t begin(int64_t block) const { return std::min(rows, block * block_rows); }
  int64_t scratch_bytes(int64_t sums) const { return blocks * sums * padded * int64_t(sizeof(float)); }
};

// Row b of the blocks' sums starts at data + b * stride.
struct Partials {
  const float* data;
  int64_t blocks, stride;
  bool accumulate;
};
// out[C] (+)= the rows, added first to last in f32; out is f32 or bf16. In column_sum.cc.
void add_partials(const Context&, const Partials&, const Tensor& out);

}  // namespace trireme::cpu
