// Sums over rows whose order is a function of the number of rows: blocks of rows first, then the blocks in
// order.
#pragma once
#include "device/cpu/partials.h"
#include "device/cuda/values.cuh"

namespace trireme::cuda {

using trireme::cpu::RowBlocks;  // how rows are cut, and its scratch: the CPU's

constexpr int kColumnThreads = 128;  // of a block of columns, one a thread

// Row b of the blocks' sums begins at data + b * stride.
struct PartialRows {
  const float* data;
  int64_t blocks, stride;
  bool accumulate;
};
// out[C] (+)= the rows, added first to last in f32. In sums.cu.
void add_partials(const PartialRows&, const Tensor& out, cudaStream_t);

}  // namespace trireme::cuda
