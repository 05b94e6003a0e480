// The makers of all cases; each is defined in <op>_case.cc.
#pragma once
#include "case.h"

namespace trireme::harness {

std::unique_ptr<Case> make_matmul();
std::unique_ptr<Case> make_matmul_gelu();
std::unique_ptr<Case> make_matmul_gelu_backward();
std::unique_ptr<Case> make_embedding();
std::unique_ptr<Case> make_embedding_backward();
std::unique_ptr<Case> make_layernorm();
std::unique_ptr<Case> make_layernorm_backward();
std::unique_ptr<Case> make_rmsnorm();
std::unique_ptr<Case> make_rmsnorm_backward();
std::unique_ptr<Case> make_rope();
std::unique_ptr<Case> make_gelu();
std::unique_ptr<Case> make_gelu_backward();
std::unique_ptr<Case> make_swiglu();
std::unique_ptr<Case> make_swiglu_backward();
std::unique_ptr<Case> make_attention();
std::unique_ptr<Case> make_attention_backward();
std::unique_ptr<Case> make_cache_append();
std::unique_ptr<Case> make_attention_cached();
std::unique_ptr<Case> make_concat_shared();
std::unique_ptr<Case> make_concat_shared_backward();
std::unique_ptr<Case> make_cross_entropy();
std::unique_ptr<Case> make_softmax_stats();
std::unique_ptr<Case> make_split_cross_entropy();
std::unique_ptr<Case> make_add();
std::unique_ptr<Case> make_cast();
std::unique_ptr<Case> make_dropout();
std::unique_ptr<Case> make_zero();
std::unique_ptr<Case> make_column_sum();
std::unique_ptr<Case> make_route();
std::unique_ptr<Case> make_route_backward();
std::unique_ptr<Case> make_route_shares();
std::unique_ptr<Case> make_route_order();
std::unique_ptr<Case> make_permute_rows();
std::unique_ptr<Case> make_combine_rows();
std::unique_ptr<Case> make_combine_rows_backward();
std::unique_ptr<Case> make_grouped_matmul();
std::unique_ptr<Case> make_grouped_matmul_weight();
std::unique_ptr<Case> make_quantise();
std::unique_ptr<Case> make_fp8_matmul();
std::unique_ptr<Case> make_adamw();
std::unique_ptr<Case> make_muon_momentum();
std::unique_ptr<Case> make_muon_apply();
std::unique_ptr<Case> make_scaled_sum();
std::unique_ptr<Case> make_orthogonalise();
std::unique_ptr<Case> make_square_sums();
std::unique_ptr<Case> make_count_nonfinite();

}  // namespace trireme::harness
