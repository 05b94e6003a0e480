// The tensors of every op's arguments, for whoever treats all ops alike (device/cpu/f16.h). A new op brings
// its line, a new tensor of an op joins its op's.
#pragma once
#include <array>

#include "device/ops.h"

namespace trireme {

// Pointers to the Tensor members of an op's arguments, optional ones included.
template <class Args>
inline constexpr std::array<Tensor Args::*, 0> kOperands = {};

template <>
inline constexpr std::array kOperands<MatmulArgs> = {&MatmulArgs::a, &MatmulArgs::b, &MatmulArgs::c,
                                                     &MatmulArgs::bias, &MatmulArgs::residual};
template <>
inline constexpr std::array kOperands<MatmulGeluArgs> = {
    &MatmulGeluArgs::a, &MatmulGeluArgs::b, &MatmulGeluArgs::c, &MatmulGeluArgs::y, &MatmulGeluArgs::bias};
template <>
inline constexpr std::array kOperands<MatmulGeluBackwardArgs> = {
    &MatmulGeluBackwardArgs::a, &MatmulGeluBackwardArgs::b, &MatmulGeluBackwardArgs::x,
    &MatmulGeluBackwardArgs::c};
template <>
inline constexpr std::array kOperands<EmbeddingArgs> = {&EmbeddingArgs::ids, &EmbeddingArgs::table,
                                                        &EmbeddingArgs::y};
template <>
inline constexpr std::array kOperands<EmbeddingBackwardArgs> = {
    &EmbeddingBackwardArgs::ids, &EmbeddingBackwardArgs::dy, &EmbeddingBackwardArgs::dtable};
template <>
inline constexpr std::array kOperands<LayerNormArgs> = {&LayerNormArgs::x,    &LayerNormArgs::weight,
                                                        &LayerNormArgs::bias, &LayerNormArgs::y,
                                                        &LayerNormArgs::mean, &LayerNormArgs::rstd};
template <>
inline constexpr std::array kOperands<LayerNormBackwardArgs> = {
    &LayerNormBackwardArgs::dy,   &LayerNormBackwardArgs::x,       &LayerNormBackwardArgs::weight,
    &LayerNormBackwardArgs::mean, &LayerNormBackwardArgs::rstd,    &LayerNormBackwardArgs::add,
    &LayerNormBackwardArgs::dx,   &LayerNormBackwardArgs::dweight, &LayerNormBackwardArgs::dbias};
template <>
inline constexpr std::array kOperands<RmsNormArgs> = {&RmsNormArgs::x, &RmsNormArgs::weight, &RmsNormArgs::y,
                                                      &RmsNormArgs::rstd};
template <>
inline constexpr std::array kOperands<RmsNormBackwardArgs> = {
    &RmsNormBackwardArgs::dy,     &RmsNormBackwardArgs::x,   &RmsNormBackwardArgs::weight,
    &RmsNormBackwardArgs::rstd,   &RmsNormBackwardArgs::add, &RmsNormBackwardArgs::dx,
    &RmsNormBackwardArgs::dweight};
template <>
inline constexpr std::array kOperands<RopeArgs> = {&RopeArgs::x, &RopeArgs::cos, &RopeArgs::sin,
                                                   &RopeArgs::positions};
template <>
inline constexpr std::array kOperands<GeluArgs> = {&GeluArgs::x, &GeluArgs::y};
template <>
inline constexpr std::array kOperands<GeluBackwardArgs> = {&GeluBackwardArgs::x, &GeluBackwardArgs::dy,
                                                           &GeluBackwardArgs::dx};
template <>
inline constexpr std::array kOperands<SwigluArgs> = {&SwigluArgs::gate, &SwigluArgs::up, &SwigluArgs::y};
template <>
inline constexpr std::array kOperands<SwigluBackwardArgs> = {
    &SwigluBackwardArgs::gate, &SwigluBackwardArgs::up, &SwigluBackwardArgs::dy, &SwigluBackwardArgs::dgate,
    &SwigluBackwardArgs::dup};
template <>
inline constexpr std::array kOperands<AttentionArgs> = {&AttentionArgs::q,   &AttentionArgs::k,
                                                        &AttentionArgs::v,   &AttentionArgs::o,
                                                        &AttentionArgs::lse, &AttentionArgs::first};
template <>
inline constexpr std::array kOperands<AttentionBackwardArgs> = {
    &AttentionBackwardArgs::q,    &AttentionBackwardArgs::k,   &AttentionBackwardArgs::v,
    &AttentionBackwardArgs::o,    &AttentionBackwardArgs::lse, &AttentionBackwardArgs::dout,
    &AttentionBackwardArgs::dq,   &AttentionBackwardArgs::dk,  &AttentionBackwardArgs::dv,
    &AttentionBackwardArgs::first};
template <>
inline constexpr std::array kOperands<CacheAppendArgs> = {
    &CacheAppendArgs::k, &CacheAppendArgs::v, &CacheAppendArgs::positions, &CacheAppendArgs::k_cache,
    &CacheAppendArgs::v_cache};
template <>
inline constexpr std::array kOperands<CachedAttentionArgs> = {
    &CachedAttentionArgs::q, &CachedAttentionArgs::k, &CachedAttentionArgs::v,
    &CachedAttentionArgs::positions, &CachedAttentionArgs::o};
template <>
inline constexpr std::array kOperands<ConcatSharedArgs> = {&ConcatSharedArgs::a, &ConcatSharedArgs::b,
                                                           &ConcatSharedArgs::y};
template <>
inline constexpr std::array kOperands<ConcatSharedBackwardArgs> = {
    &ConcatSharedBackwardArgs::dy, &ConcatSharedBackwardArgs::da, &ConcatSharedBackwardArgs::db};
template <>
inline constexpr std::array kOperands<CrossEntropyArgs> = {
    &CrossEntropyArgs::logits, &CrossEntropyArgs::targets, &CrossEntropyArgs::loss};
template <>
inline constexpr std::array kOperands<SoftmaxStatsArgs> = {
    &SoftmaxStatsArgs::logits, &SoftmaxStatsArgs::targets, &SoftmaxStatsArgs::stats};
template <>
inline constexpr std::array kOperands<SplitCrossEntropyArgs> = {
    &SplitCrossEntropyArgs::logits, &SplitCrossEntropyArgs::targets, &SplitCrossEntropyArgs::stats,
    &SplitCrossEntropyArgs::loss};
template <>
inline constexpr std::array kOperands<AddArgs> = {&AddArgs::a, &AddArgs::b, &AddArgs::y};
template <>
inline constexpr std::array kOperands<DropoutArgs> = {&DropoutArgs::x, &DropoutArgs::residual,
                                                      &DropoutArgs::y};
template <>
inline constexpr std::array kOperands<CastArgs> = {&CastArgs::src, &CastArgs::dst};
template <>
inline constexpr std::array kOperands<ZeroArgs> = {&ZeroArgs::y};
template <>
inline constexpr std::array kOperands<ColumnSumArgs> = {&ColumnSumArgs::dy, &ColumnSumArgs::db};
template <>
inline constexpr std::array kOperands<RouteArgs> = {&RouteArgs::logits, &RouteArgs::bias, &RouteArgs::ids,
                                                    &RouteArgs::weights};
template <>
inline constexpr std::array kOperands<RouteBackwardArgs> = {
    &RouteBackwardArgs::logits, &RouteBackwardArgs::ids, &RouteBackwardArgs::dweights,
    &RouteBackwardArgs::balance, &RouteBackwardArgs::dlogits};
template <>
inline constexpr std::array kOperands<RouteSharesArgs> = {&RouteSharesArgs::logits, &RouteSharesArgs::ids,
                                                          &RouteSharesArgs::choices, &RouteSharesArgs::shares,
                                                          &RouteSharesArgs::squares};
template <>
inline constexpr std::array kOperands<RouteOrderArgs> = {&RouteOrderArgs::ids, &RouteOrderArgs::offsets,
                                                         &RouteOrderArgs::place, &RouteOrderArgs::source,
                                                         &RouteOrderArgs::load};
template <>
inline constexpr std::array kOperands<PermuteRowsArgs> = {&PermuteRowsArgs::x, &PermuteRowsArgs::source,
                                                          &PermuteRowsArgs::y};
template <>
inline constexpr std::array kOperands<CombineRowsArgs> = {&CombineRowsArgs::x, &CombineRowsArgs::place,
                                                          &CombineRowsArgs::weights, &CombineRowsArgs::add,
                                                          &CombineRowsArgs::y};
template <>
inline constexpr std::array kOperands<CombineRowsBackwardArgs> = {
    &CombineRowsBackwardArgs::dy,      &CombineRowsBackwardArgs::x,       &CombineRowsBackwardArgs::place,
    &CombineRowsBackwardArgs::source,  &CombineRowsBackwardArgs::weights, &CombineRowsBackwardArgs::dx,
    &CombineRowsBackwardArgs::dweights};
template <>
inline constexpr std::array kOperands<GroupedMatmulArgs> = {
    &GroupedMatmulArgs::x, &GroupedMatmulArgs::w, &GroupedMatmulArgs::offsets, &GroupedMatmulArgs::y};
template <>
inline constexpr std::array kOperands<GroupedMatmulWeightArgs> = {
    &GroupedMatmulWeightArgs::dy, &GroupedMatmulWeightArgs::x, &GroupedMatmulWeightArgs::offsets,
    &GroupedMatmulWeightArgs::dw};
template <>
inline constexpr std::array kOperands<QuantiseArgs> = {
    &QuantiseArgs::x, &QuantiseArgs::codes, &QuantiseArgs::scale, &QuantiseArgs::amax, &QuantiseArgs::seen};
template <>
inline constexpr std::array kOperands<Fp8MatmulArgs> = {
    &Fp8MatmulArgs::a, &Fp8MatmulArgs::scale_a, &Fp8MatmulArgs::b,       &Fp8MatmulArgs::scale_b,
    &Fp8MatmulArgs::c, &Fp8MatmulArgs::bias,    &Fp8MatmulArgs::residual};
template <>
inline constexpr std::array kOperands<AdamWArgs> = {
    &AdamWArgs::master, &AdamWArgs::exp_avg, &AdamWArgs::exp_avg_sq, &AdamWArgs::grad, &AdamWArgs::weight};
template <>
inline constexpr std::array kOperands<MuonMomentumArgs> = {
    &MuonMomentumArgs::momentum, &MuonMomentumArgs::grad, &MuonMomentumArgs::update};
template <>
inline constexpr std::array kOperands<OrthogonaliseArgs> = {&OrthogonaliseArgs::x};
template <>
inline constexpr std::array kOperands<MuonApplyArgs> = {&MuonApplyArgs::master, &MuonApplyArgs::update,
                                                        &MuonApplyArgs::weight};
template <>
inline constexpr std::array kOperands<ScaledSumArgs> = {&ScaledSumArgs::a, &ScaledSumArgs::b,
                                                        &ScaledSumArgs::y};
template <>
inline constexpr std::array kOperands<SquareSumsArgs> = {&SquareSumsArgs::x, &SquareSumsArgs::sums};
template <>
inline constexpr std::array kOperands<CountNonfiniteArgs> = {&CountNonfiniteArgs::x,
                                                             &CountNonfiniteArgs::count};

#define TRIREME_HAS_OPERANDS(Args) \
  static_assert(!kOperands<Args>.empty(), "list the tensors of " #Args " in device/operands.h");
TRIREME_OPS(TRIREME_HAS_OPERANDS)
#undef TRIREME_HAS_OPERANDS

}  // namespace trireme
