// Scratch of matrix products and attention on CUDA, known without a GPU.
#include <algorithm>

#include "device/cuda/attention_sm90.h"
#include "device/cuda/fp8.h"
#include "device/cuda/matmul_gelu.h"

namespace trireme::cuda {

// The library's workspace: partial sums of products that are cut along the summed dim (f32, at most 16
// parts), at most what it is advised to have on sm_90. A smaller one only leaves it fewer algorithms. With
// room to begin where the library asks for it, for scratch begins at any multiple of 64.
int64_t cuda_scratch(const MatmulArgs& a) {
  if (a.c.numel() == 0) return 0;
  const int64_t parts = a.c.numel() * int64_t(sizeof(float)) * 16 + (64 << 10);
  return round_up(std::min<int64_t>(parts, 32 << 20), kWorkspaceAlign) + kWorkspaceAlign;
}
int64_t cuda_scratch(const MatmulGeluArgs& a) {
  return cuda_scratch(product_of(a));
}
int64_t cuda_scratch(const MatmulGeluBackwardArgs& a) {
  return cuda_scratch(product_of(a));
}
// Numbers of both operands and what their product takes; tensor cores of 8 bits turn codes in the same place.
int64_t cuda_scratch(const Fp8MatmulArgs& a) {
  const Fp8AsBf16 as(a, nullptr);
  return as.possible && a.c.numel() > 0 ? as.bytes + cuda_scratch(as.product) : 0;
}
int64_t cuda_scratch(const GroupedMatmulArgs&) {
  return 0;
}
int64_t cuda_scratch(const GroupedMatmulWeightArgs&) {
  return 0;
}
int64_t cuda_scratch(const AttentionArgs&) {
  return 0;
}
// rowsum(dO o O) of every row, in the type of the sums.
int64_t cuda_scratch(const AttentionBackwardArgs& a) {
  return a.lse.numel() * size_of(a.lse.dtype);
}
int64_t sm90_scratch(const AttentionBackwardArgs& a) {
  const HeadWidths widths = head_widths(a.q.shape[3], a.v.shape[3]);
  if (size_of(a.q.dtype) != 2 || widths.d == 0) return cuda_scratch(a);
  const sm90::BackwardScratch more(a.q.shape[0], a.q.shape[2], a.q.shape[1], widths);
  return sm90::backward_sums_at(a.lse.numel()) + more.bytes;
}
int64_t cuda_scratch(const CachedAttentionArgs&) {
  return 0;
}

}  // namespace trireme::cuda
