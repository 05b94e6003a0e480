// grouped_matmul and grouped_matmul_weight (grouped_matmul.cuh).
#include "device/cuda/grouped_matmul.cuh"

namespace trireme::cuda {

void cuda_launch(const GroupedMatmulArgs& a, const Tensor&, CudaContext& ctx, cudaStream_t stream) {
  if (a.y.numel() == 0) return;
  by_type(a.x.dtype, [&](auto type) { run_grouped<decltype(type)>(a, ctx, stream); });
}
void cuda_launch(const GroupedMatmulWeightArgs& a, const Tensor&, CudaContext& ctx, cudaStream_t stream) {
  if (a.dw.numel() == 0) return;
  by_type(a.x.dtype, [&](auto type) { run_grouped_weight<decltype(type)>(a, ctx, stream); });
}

}  // namespace trireme::cuda
