// Attention in f64, sums in f64.
#include "device/cuda/attention_launch.cuh"

namespace trireme::cuda {

void attention_f64(const AttentionArgs& a, const CudaContext& ctx, cudaStream_t stream) {
  launch_forward<double, double>(a, ctx, stream);
}
void attention_backward_f64(const AttentionBackwardArgs& a, const Tensor& scratch, const CudaContext& ctx,
                            cudaStream_t stream) {
  launch_backward<double, double>(a, scratch, ctx, stream);
}

}  // namespace trireme::cuda
