// Products of ragged groups of rows, one weight a group (ops.h: grouped_matmul, grouped_matmul_weight).
//
// With our own product (gemm.h): tasks of one expert, some of its rows and some of its columns, each run by
// one thread, taken in turn by all. So experts of many rows and of few keep all threads busy, and a panel of
// a weight is packed once for all rows of an expert (up to kTaskRows). Up to kFewRows rows of an expert go to
// matmul_few_rows. The weights' gradient: tasks are rows of dw.
//
// Elsewhere: expert by expert, its rows cut into blocks of powers of two, so that the products that the
// matrix library plans are few, whatever the counts; a weight's gradient of several blocks is summed in f32.
//
// Scratch is a bound known from the shapes: counts are data.
#pragma once
#include "device/cpu/launch.h"

namespace trireme::cpu {

int64_t grouped_by_blocks_scratch_bytes(const GroupedMatmulArgs&, const Context&);
void grouped_by_blocks(const GroupedMatmulArgs&, const Tensor& scratch, const Context&);
int64_t grouped_by_blocks_scratch_bytes(const GroupedMatmulWeightArgs&, const Context&);
void grouped_by_blocks(const GroupedMatmulWeightArgs&, const Tensor& scratch, const Context&);

}  // namespace trireme::cpu
