// Products with gelu in them: cuBLASLt's epilogues GELU_AUX and DGELU, and what takes their place.
#pragma once
#include "device/cuda/launches.h"

namespace trireme::cuda {

inline MatmulArgs product_of(const MatmulGeluArgs& p) {
  return {.a = p.a, .b = p.b, .c = p.c, .trans_b = p.trans_b, .bias = p.bias, .residual = {}};
}
inline MatmulArgs product_of(const MatmulGeluBackwardArgs& p) {
  return {.a = p.a, .b = p.b, .c = p.c, .trans_b = p.trans_b, .bias = {}, .residual = {}};
}

// One call of the library, named in CudaContext::last_kernel. Returns false and computes nothing if the
// library has none (row lengths not divisible by 8, a type of 32 bits); the product that follows names
// itself.
bool gelu_in_library(const MatmulGeluArgs&, const Tensor& scratch, CudaContext&, cudaStream_t);
bool gelu_in_library(const MatmulGeluBackwardArgs&, const Tensor& scratch, CudaContext&, cudaStream_t);

}  // namespace trireme::cuda
