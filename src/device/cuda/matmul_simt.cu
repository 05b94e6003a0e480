// matmul by blocks of 64 x 64 sums in f32 (matmul_simt.cuh).
#include "device/cuda/matmul_simt.h"

#include "device/cuda/matmul_simt.cuh"

namespace trireme::cuda {

void simt_matmul(const MatmulArgs& a, cudaStream_t stream) {
  by_type(a.a.dtype, [&](auto type) {
    using T = decltype(type);
    if (a.c.dtype == DType::f32)
      run_matmul_simt<T, float>(a, stream);
    else
      run_matmul_simt<T, T>(a, stream);
  });
}

}  // namespace trireme::cuda
