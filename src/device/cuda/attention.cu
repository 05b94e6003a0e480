// attention and attention_backward: by type.
//
// version and block sizes are what a CPU's tiles may choose; here both versions are FlashAttention-2's loop,
// whose results are those of version 1, in tiles of the kernel's own.
#include "device/cuda/attention.h"

namespace trireme::cuda {
namespace {

// Counters are of the CPU's tiles.
void refuse_traffic(const TileTraffic* traffic, std::string_view op) {
  if (traffic) bad_request("op '{}' counts the traffic of its tiles on cpu only, not on cuda", op);
}

}  // namespace

void cuda_launch(const AttentionArgs& a, const Tensor&, CudaContext& ctx, cudaStream_t stream) {
  refuse_traffic(a.traffic, a.kName);
  if (a.o.numel() == 0 || attention_on_sm90(a, ctx, stream)) return;
  switch (a.q.dtype) {
    case DType::f64:
      return attention_f64(a, ctx, stream);
    case DType::f32:
      return attention_f32(a, ctx, stream);
    case DType::bf16:
      return attention_bf16(a, ctx, stream);
    default:
      return attention_f16(a, ctx, stream);
  }
}
void cuda_launch(const AttentionBackwardArgs& a, const Tensor& scratch, CudaContext& ctx,
                 cudaStream_t stream) {
  refuse_traffic(a.traffic, a.kName);
  if (attention_on_sm90(a, scratch, ctx, stream)) return;
  switch (a.q.dtype) {
    case DType::f64:
      return attention_backward_f64(a, scratch, ctx, stream);
    case DType::f32:
      return attention_backward_f32(a, scratch, ctx, stream);
    case DType::bf16:
      return attention_backward_bf16(a, scratch, ctx, stream);
    default:
      return attention_backward_f16(a, scratch, ctx, stream);
  }
}

}  // namespace trireme::cuda
