// Attention in bf16, sums in f32.
#include "device/cuda/attention_launch.cuh"

namespace trireme::cuda {

void attention_bf16(const AttentionArgs& a, const CudaContext& ctx, cudaStream_t stream) {
  launch_forward<bf16, float>(a, ctx, stream);
}
void attention_backward_bf16(const AttentionBackwardArgs& a, const Tensor& scratch, const CudaContext& ctx,
                             cudaStream_t stream) {
  launch_backward<bf16, float>(a, scratch, ctx, stream);
}

}  // namespace trireme::cuda
