// Which kernel takes an attention, and its launch.
#pragma once
#include "device/cuda/attention.h"
#include "device/cuda/attention_mma.cuh"
#include "device/cuda/attention_simt.cuh"

namespace trireme::cuda {

// Rows of a tile: the most that fit the shared memory that every GPU from sm_80 on grants a block.
inline constexpr int64_t kTileBytes = 96 << 10;
template <class Acc, class Elements>
int tile_rows(const Elements& elements, int dim, int v_dim, const char* op) {
  for (int r : {32, 16, 8, 4})
    if (elements(r, dim, v_dim) * int64_t(sizeof(Acc)) <= kTileBytes) return r;
  bad_request("{}: heads of {} and {} elements are too wide for its CUDA kernel", op, dim, v_dim);
}

// A launch of a kernel over tiles of r rows: blocks of kSimtRowThreads r threads.
template <class T, class Acc>
void run_tiles(void (*kernel)(AttentionProblem<T, Acc>, int), Grid grid, int r, int64_t elements,
               cudaStream_t stream, const AttentionProblem<T, Acc>& p) {
  const int64_t bytes = elements * int64_t(sizeof(Acc));
  if (bytes > 48 << 10) allow_shared(kernel, bytes);
  run_blocks(kernel, grid, kSimtRowThreads * r, bytes, stream, p, r);
}

template <class T, class Acc>
void forward_simt(const AttentionProblem<T, Acc>& p, cudaStream_t stream) {
  const int r = tile_rows<Acc>(forward_tile, p.dim, p.v_dim, "attention");
  run_tiles(attention_forward_simt<T, Acc>, Grid(ceil_div(p.seq, r), p.heads, p.batch), r,
            forward_tile(r, p.dim, p.v_dim), stream, p);
}

template <class T, class Acc>
void delta_of(const AttentionProblem<T, Acc>& p, cudaStream_t stream) {
  run_blocks(attention_delta<T, Acc>, Grid(ceil_div(int64_t(p.batch) * p.heads * p.seq, 4)), 128, 0, stream,
             p);
}
template <class T, class Acc>
void backward_simt(const AttentionProblem<T, Acc>& p, cudaStream_t stream) {
  int r = tile_rows<Acc>(key_gradient_tile, p.dim, p.v_dim, "attention_backward");
  run_tiles(attention_key_gradients_simt<T, Acc>, Grid(ceil_div(p.keys, r), p.kv_heads, p.batch), r,
            key_gradient_tile(r, p.dim, p.v_dim), stream, p);
  r = tile_rows<Acc>(query_gradient_tile, p.dim, p.v_dim, "attention_backward");
  run_tiles(attention_query_gradient_simt<T, Acc>, Grid(ceil_div(p.seq, r), p.heads, p.batch), r,
            query_gradient_tile(r, p.dim, p.v_dim), stream, p);
}

template <class T, class Acc>
void launch_forward(const AttentionArgs& a, const CudaContext& ctx, cudaStream_t stream) {
  const auto p = problem_of_forward<T, Acc>(a);
  if constexpr (sizeof(T) == 2)
    if (takes_mma(a, ctx)) return tell_kernel(ctx, kMmaKernel), forward_mma(p, stream);
  tell_kernel(ctx, kSimtKernel);
  forward_simt(p, stream);
}
template <class T, class Acc>
void launch_backward(const AttentionBackwardArgs& a, const Tensor& scratch, const CudaContext& ctx,
                     cudaStream_t stream) {
  const auto p = problem_of_backward<T, Acc>(a, scratch);
  delta_of(p, stream);
  if constexpr (sizeof(T) == 2)
    if (takes_mma(a, ctx)) return tell_kernel(ctx, kMmaKernel), backward_mma(p, stream);
  tell_kernel(ctx, kSimtKernel);
  backward_simt(p, stream);
}

}  // namespace trireme::cuda
