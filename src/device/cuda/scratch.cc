// Scratch of operations on CUDA: functions of shapes and types alone. Operations that are not here have
// theirs beside them.
#include "device/cpu/partials.h"
#include "device/cuda/embedding_pieces.h"
#include "device/cuda/launches.h"

namespace trireme::cuda {

using cpu::RowBlocks;

// Sums of blocks of rows (partials.cuh).
int64_t cuda_scratch(const LayerNormBackwardArgs& a) {
  return RowBlocks(a.x.shape[0], a.x.shape[1]).scratch_bytes(2);
}
int64_t cuda_scratch(const RmsNormBackwardArgs& a) {
  return RowBlocks(a.rstd.numel(), a.weight.numel()).scratch_bytes(1);
}
int64_t cuda_scratch(const ColumnSumArgs& a) {
  return RowBlocks(a.dy.shape[0], a.dy.shape[1]).scratch_bytes(1);
}
// Sums of pieces of long lists, where each table row's list begins, and the lists.
int64_t cuda_scratch(const EmbeddingBackwardArgs& a) {
  const int64_t sums = embedding_pieces(a.ids.numel()) * padded_columns(a.dtable.shape[1]);
  return sums * int64_t(sizeof(float)) + (a.dtable.shape[0] + 1 + a.ids.numel()) * int64_t(sizeof(int32_t));
}
// Rows of each expert.
int64_t cuda_scratch(const RouteOrderArgs& a) {
  return a.load.numel() * int64_t(sizeof(int32_t));
}

#define TRIREME_NO_SCRATCH(Args)      \
  int64_t cuda_scratch(const Args&) { \
    return 0;                         \
  }
TRIREME_NO_SCRATCH(EmbeddingArgs)
TRIREME_NO_SCRATCH(LayerNormArgs)
TRIREME_NO_SCRATCH(RmsNormArgs)
TRIREME_NO_SCRATCH(RopeArgs)
TRIREME_NO_SCRATCH(GeluArgs)
TRIREME_NO_SCRATCH(GeluBackwardArgs)
TRIREME_NO_SCRATCH(SwigluArgs)
TRIREME_NO_SCRATCH(SwigluBackwardArgs)
TRIREME_NO_SCRATCH(CacheAppendArgs)
TRIREME_NO_SCRATCH(ConcatSharedArgs)
TRIREME_NO_SCRATCH(ConcatSharedBackwardArgs)
TRIREME_NO_SCRATCH(CrossEntropyArgs)
TRIREME_NO_SCRATCH(SoftmaxStatsArgs)
TRIREME_NO_SCRATCH(SplitCrossEntropyArgs)
TRIREME_NO_SCRATCH(AddArgs)
TRIREME_NO_SCRATCH(CastArgs)
TRIREME_NO_SCRATCH(DropoutArgs)
TRIREME_NO_SCRATCH(ZeroArgs)
TRIREME_NO_SCRATCH(RouteArgs)
TRIREME_NO_SCRATCH(RouteBackwardArgs)
TRIREME_NO_SCRATCH(RouteSharesArgs)
TRIREME_NO_SCRATCH(PermuteRowsArgs)
TRIREME_NO_SCRATCH(CombineRowsArgs)
TRIREME_NO_SCRATCH(CombineRowsBackwardArgs)
TRIREME_NO_SCRATCH(QuantiseArgs)
TRIREME_NO_SCRATCH(AdamWArgs)
TRIREME_NO_SCRATCH(MuonMomentumArgs)
TRIREME_NO_SCRATCH(MuonApplyArgs)
TRIREME_NO_SCRATCH(ScaledSumArgs)
TRIREME_NO_SCRATCH(OrthogonaliseArgs)
TRIREME_NO_SCRATCH(SquareSumsArgs)
TRIREME_NO_SCRATCH(CountNonfiniteArgs)
#undef TRIREME_NO_SCRATCH

}  // namespace trireme::cuda
