// Attention in f32, sums in f32.
#include "device/cuda/attention_launch.cuh"

namespace trireme::cuda {

void attention_f32(const AttentionArgs& a, const CudaContext& ctx, cudaStream_t stream) {
  launch_forward<float, float>(a, ctx, stream);
}
void attention_backward_f32(const AttentionBackwardArgs& a, const Tensor& scratch, const CudaContext& ctx,
                            cudaStream_t stream) {
  launch_backward<float, float>(a, scratch, ctx, stream);
}

}  // namespace trireme::cuda
