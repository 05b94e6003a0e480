// What the CUDA backend's files share: one launch function per op, each defined in the .cu file of its
// family, and what scratch it takes, in a .cc file, for meta asks the same where CUDA is not built.
#pragma once
#include <span>

#include "device/cuda/context.h"
#include "device/ops.h"

namespace trireme::cuda {

// cuda_launch: arguments were checked; puts kernels on the stream and returns. scratch: as many bytes as
// cuda_scratch asked for, 64-byte aligned. cuda_scratch: a function of shapes and types alone.
#define TRIREME_CUDA_OP(Args)                                                       \
  void cuda_launch(const Args&, const Tensor& scratch, CudaContext&, cudaStream_t); \
  int64_t cuda_scratch(const Args&);
TRIREME_OPS(TRIREME_CUDA_OP)
#undef TRIREME_CUDA_OP

// Where cuBLASLt's workspace begins: "must be aligned to at least a multiple of 256 bytes" (its
// documentation of cublasLtMatmul).
inline constexpr int64_t kWorkspaceAlign = 256;
inline Tensor workspace_in(const Tensor& scratch) {
  const auto at = reinterpret_cast<uintptr_t>(scratch.data),
             begin = uintptr_t(round_up(int64_t(at), kWorkspaceAlign));
  const int64_t bytes = scratch.numel() - kWorkspaceAlign;
  return bytes > 0 ? Tensor(scratch.data + (begin - at), {bytes}, DType::u8) : Tensor();
}

// The same where CudaContext::sm90_attention: attention's backward pass takes more.
int64_t sm90_scratch(const AttentionBackwardArgs&);
template <class Args>
int64_t cuda_scratch(const Args& a, bool sm90_attention) {
  if constexpr (std::is_same_v<Args, AttentionBackwardArgs>)
    if (sm90_attention) return sm90_scratch(a);
  return cuda_scratch(a);
}

// What Kernels::gelu_in_products says here: of 16 bits, where tensor cores multiply and cuBLASLt applies gelu
// to the f32 sums. That is not what gelu makes of rounded ones, which recompute does: not of runs whose bits
// must not depend on what is made anew.
inline bool gelu_in_products(DType t, bool deterministic) {
  return size_of(t) == 2 && !deterministic;
}

// dst[i] = src[i] for equal shapes and element sizes, any strides (copy.cu).
void copy_strided(const Tensor& dst, const Tensor& src, cudaStream_t);

// What cpu::sum_pieces and max_pieces do of pieces in this device's memory, to the same bits
// (fold_pieces.cu). The types that those take; kMostFolded sources and as many destinations at most.
inline constexpr size_t kMostFolded = 64;
void fold_pieces(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n, DType,
                 bool max, cudaStream_t);

}  // namespace trireme::cuda
