// Every op of the harness, in the order of ops.h.
#include "cases.h"

namespace trireme::harness {

std::span<const CaseEntry> all_cases() {
  static constexpr CaseEntry kCases[] = {
      {"matmul", make_matmul},
      {"matmul_gelu", make_matmul_gelu},
      {"matmul_gelu_backward", make_matmul_gelu_backward},
      {"embedding", make_embedding},
      {"embedding_backward", make_embedding_backward},
      {"layernorm", make_layernorm},
      {"layernorm_backward", make_layernorm_backward},
      {"rmsnorm", make_rmsnorm},
      {"rmsnorm_backward", make_rmsnorm_backward},
      {"rope", make_rope},
      {"gelu", make_gelu},
      {"gelu_backward", make_gelu_backward},
      {"swiglu", make_swiglu},
      {"swiglu_backward", make_swiglu_backward},
      {"attention", make_attention},
      {"attention_backward", make_attention_backward},
      {"cache_append", make_cache_append},
      {"attention_cached", make_attention_cached},
      {"concat_shared", make_concat_shared},
      {"concat_shared_backward", make_concat_shared_backward},
      {"cross_entropy", make_cross_entropy},
      {"softmax_stats", make_softmax_stats},
      {"split_cross_entropy", make_split_cross_entropy},
      {"add", make_add},
      {"cast", make_cast},
      {"dropout", make_dropout},
      {"zero", make_zero},
      {"column_sum", make_column_sum},
      {"route", make_route},
      {"route_backward", make_route_backward},
      {"route_shares", make_route_shares},
      {"route_order", make_route_order},
      {"permute_rows", make_permute_rows},
      {"combine_rows", make_combine_rows},
      {"combine_rows_backward", make_combine_rows_backward},
      {"grouped_matmul", make_grouped_matmul},
      {"grouped_matmul_weight", make_grouped_matmul_weight},
      {"quantise", make_quantise},
      {"fp8_matmul", make_fp8_matmul},
      {"adamw", make_adamw},
      {"muon_momentum", make_muon_momentum},
      {"muon_apply", make_muon_apply},
      {"scaled_sum", make_scaled_sum},
      {"orthogonalise", make_orthogonalise},
      {"square_sums", make_square_sums},
      {"count_nonfinite", make_count_nonfinite},
  };
  return kCases;
}

}  // namespace trireme::harness
