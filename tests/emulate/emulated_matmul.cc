// What only a device runs, without one: of any product the kernel that takes what cuBLASLt does not.
#include "device/cuda/fp8.h"
#include "device/cuda/matmul_gelu.h"
#include "device/cuda/matmul_simt.h"

namespace trireme::cuda {

void cuda_launch(const MatmulArgs& a, const Tensor&, CudaContext&, cudaStream_t stream) {
  if (a.c.numel() > 0) simt_matmul(a, stream);
}

bool gelu_in_library(const MatmulGeluArgs&, const Tensor&, CudaContext&, cudaStream_t) {
  return false;
}
bool gelu_in_library(const MatmulGeluBackwardArgs&, const Tensor&, CudaContext&, cudaStream_t) {
  return false;
}

bool fp8_on_tensor_cores(const Fp8MatmulArgs&, const Tensor&, CudaContext&, cudaStream_t) {
  return false;
}

}  // namespace trireme::cuda
