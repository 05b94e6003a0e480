// Ids that come from data are looked at before and apart from the kernels that follow them, on the device:
// the rank goes on, and the first bad one is thrown at the next sync. Kernels skip ids that are out of range.
#pragma once
#include "device/cuda/context.h"

namespace trireme::cuda {

// As cpu/indices.h: every element of ids (i32, contiguous) must lie in [low, high).
void check_indices(const Tensor& ids, int64_t low, int64_t high, std::string_view what,
                   std::string_view range, CudaContext&, cudaStream_t);
// Waits for the stream and throws what checks on it found: of the first kind that failed, the first place.
// Where none was made since the last call it only waits.
void raise_bad_indices(CudaContext&, cudaStream_t);
// As raise_bad_indices; then slots of kinds that no graph writes into are free.
void free_index_slots(CudaContext&, cudaStream_t);

}  // namespace trireme::cuda
