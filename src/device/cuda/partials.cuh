// Sums over rows whose order is a function of the number of rows: blocks of rows first, then the blocks in
// order.
#pragma once
#include "device/cpu/partials.h"
#include "device/cuda/values.cuh"

namespace trireme::cuda {

using trireme::cpu::RowBlocks;  // how rows are cut, and its scratch: the CPU's

// Row b of the blocks' sums begins at data + b * stride, and the second sum `second` elements after the
// first.
struct PartialRows {
  const float* data;
  int64_t blocks, stride, second;
  bool accumulate;
};
// out[C] (+)= the rows, added first to last in f32, and second_out[C] the rows of the second sum, if there is
// one. Both of one type. In sums.cu.
void add_partials(const PartialRows&, const Tensor& out, const Tensor& second_out, cudaStream_t);

}  // namespace trireme::cuda
