// Attention in f16, sums in f32.
#include "device/cuda/attention_launch.cuh"

namespace trireme::cuda {

void attention_f16(const AttentionArgs& a, const CudaContext& ctx, cudaStream_t stream) {
  launch_forward<f16, float>(a, ctx, stream);
}
void attention_backward_f16(const AttentionBackwardArgs& a, const Tensor& scratch, const CudaContext& ctx,
                            cudaStream_t stream) {
  launch_backward<f16, float>(a, scratch, ctx, stream);
}

}  // namespace trireme::cuda
