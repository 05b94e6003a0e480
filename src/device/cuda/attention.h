// The attention kernels of each type, instantiated in a file of their own for nvcc's time.
#pragma once
#include "device/cuda/kernel_names.h"
#include "device/cuda/launches.h"

namespace trireme::cuda {

// scratch: as cuda_scratch says.
#define TRIREME_ATTENTION_OF(type)                                                                        \
  void attention_##type(const AttentionArgs&, const CudaContext&, cudaStream_t);                          \
  void attention_backward_##type(const AttentionBackwardArgs&, const Tensor& scratch, const CudaContext&, \
                                 cudaStream_t);
TRIREME_ATTENTION_OF(f64)
TRIREME_ATTENTION_OF(f32)
TRIREME_ATTENTION_OF(bf16)
TRIREME_ATTENTION_OF(f16)
#undef TRIREME_ATTENTION_OF

inline void tell_kernel(const CudaContext& ctx, std::string_view kernel) {
  ctx.last_kernel = kernel;
}

// Takes the problem to attention_sm90*.cu where that is wanted and can; else false, and nothing is
// done.
bool attention_on_sm90(const AttentionArgs&, const CudaContext&, cudaStream_t);
bool attention_on_sm90(const AttentionBackwardArgs&, const Tensor& scratch, const CudaContext&, cudaStream_t);

}  // namespace trireme::cuda
