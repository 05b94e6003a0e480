#include "model/build.h"

#include <fmt/format.h>

#include <cmath>

#include "device/rope_table.h"
#include "model/block.h"
#include "model/embedding.h"
#include "model/head.h"

namespace trireme {
namespace {

Norm make_norm(const ModelSpec& m, std::string name, TensorPlace tp) {
  return Norm(std::move(name), m.norm == "layer" ? NormKind::layer : NormKind::rms, m.hidden,
              float(m.norm_eps), tp);
}

Activation activation_of(const ModelSpec& m) {
  if (m.activation == "swiglu") return Activation::swiglu;
  return m.activation == "gelu_tanh" ? Activation::gelu_tanh : Activation::gelu_erf;
}

Balance balance_of(const MoeSpec& e) {
  return {.aux_loss = e.aux_loss,
          .z_loss = e.z_loss,
          .capacity = e.capacity,
          .unit = e.unit == "sequence"     ? BalanceUnit::sequence
                  : e.unit == "microbatch" ? BalanceUnit::microbatch
                                           : BalanceUnit::global};
}

FeedForward make_feed_forward(const ModelSpec& m, int64_t i, float std, float out_std, TensorPlace tp,
                              AxisPlace ep, const MoeSpec& moe) {
  const std::string block = fmt::format("blocks.{}", i);
  if (!m.expert_block(i))
    return Mlp(block + ".mlp", activation_of(m), m.hidden, m.ffn, m.mlp_bias, std, out_std, m.resid_pdrop,
               tp);
  return Moe(block + ".moe", {.block = i,
                              .hidden = m.hidden,
                              .experts = m.experts,
                              .experts_per_token = m.experts_per_token,
                              .ffn = m.moe_ffn,
                              .shared_ffn = m.shared_ffn,
                              .shared_gate = m.shared_gate,
                              .normalise = m.norm_topk,
                              .sigmoid = m.router_score == "sigmoid",
                              .bias = m.router_bias,
                              .groups = m.expert_groups,
                              .top_groups = m.top_groups,
                              .group_pairs = m.group_worth == "pair",
                              .scale = float(m.routed_scale),
                              .init_std = std,
                              .out_init_std = out_std,
                              .resid_pdrop = m.resid_pdrop,
                              .balance = balance_of(moe),
                              .ep = ep,
                              .tp = tp});
}

double latent_scores(const RopeScaling& s) {
  if (s.type != "yarn") return 1;
  return yarn_factors(s.factor, s.mscale, s.mscale_all_dim, s.attention_factor).scores;
}

AnyAttention make_attention(const ModelSpec& m, const std::string& name, float std, float out_std,
                            const RopeTable* rope, TensorPlace tp) {
  if (m.latent()) {
    return LatentAttention(name,
                           {.hidden = m.hidden,
                            .heads = m.heads,
                            .q_rank = m.q_rank,
                            .kv_rank = m.kv_rank,
                            .nope = m.nope_head_dim,
                            .rope = m.rope_head_dim,
                            .value = m.v_head_dim,
                            .rope_interleaved = m.rope_interleaved,
                            .scores = latent_scores(m.rope_scaling),
                            .bias = m.attn_bias,
                            .init_std = std,
                            .out_init_std = out_std,
                            .attn_pdrop = m.attn_pdrop,
                            .resid_pdrop = m.resid_pdrop},
                           rope, tp);
  }
  Attention::Sizes sizes{.hidden = m.hidden,
                         .heads = m.heads,
                         .kv_heads = m.kv_heads,
                         .head_dim = m.head_dim,
                         .qkv_bias = m.biased_qkv(),
                         .out_bias = m.attn_bias,
                         .qk_norm_eps = {},
                         .init_std = std,
                         .out_init_std = out_std,
                         .attn_pdrop = m.attn_pdrop,
                         .resid_pdrop = m.resid_pdrop};
  if (m.qk_norm) sizes.qk_norm_eps = float(m.norm_eps);
  return Attention(name, sizes, rope, tp);
}

std::unique_ptr<Layer> make_block(const ModelSpec& m, int64_t i, const RopeTable* rope, TensorPlace tp,
                                  AxisPlace ep, const MoeSpec& moe) {
  std::string name = fmt::format("blocks.{}", i);
  // Projections back into the residual stream start smaller, so its variance does not grow with depth
  // (GPT-2).
  float std = float(m.init_std), out_std = float(m.init_std / std::sqrt(2.0 * double(m.layers)));
  return std::make_unique<Block>(
      name, make_norm(m, name + ".norm1", tp), make_attention(m, name + ".attn", std, out_std, rope, tp),
      make_norm(m, name + ".norm2", tp), make_feed_forward(m, i, std, out_std, tp, ep, moe));
}

}  // namespace

std::vector<std::vector<ParamDecl>> Stage::declare() const {
  std::vector<std::vector<ParamDecl>> decls;
  for (auto& l : layers) l->declare(decls.emplace_back());
  return decls;
}

void Stage::bind(ParamSet& set) {
  for (auto& l : layers) l->bind(set);
}

Stage build_stages(const ModelSpec& m, std::span<const StageRange> ranges, const TensorPlace& tp,
                   AxisPlace ep, const MoeSpec& moe) {
  Stage stage;
  if (m.positions == "rope") stage.rope = std::make_unique<RopeTable>();
  int64_t learned = m.positions == "learned" ? m.max_positions : 0;
  bool first = false, last = false;
  for (const StageRange& range : ranges) first |= range.embedding, last |= range.head;
  const double embed_std = m.embed_std > 0 ? m.embed_std : m.init_std;
  const double head_std = m.head_std > 0 ? m.head_std : m.init_std;
  const Head::Weight head = !m.tied ? Head::Weight::own : first ? Head::Weight::tied : Head::Weight::copy;
  for (const StageRange& range : ranges) {
    if (range.embedding)
      stage.layers.push_back(std::make_unique<Embedding>(m.vocab, m.hidden, learned, float(embed_std),
                                                         m.embd_pdrop, tp, m.tied && !last));
    for (int64_t i = range.first; i < range.last; i++)
      stage.layers.push_back(make_block(m, i, stage.rope.get(), tp, ep, moe));
    if (range.head)
      stage.layers.push_back(
          std::make_unique<Head>(make_norm(m, "norm", tp), m.vocab, m.hidden, head, float(head_std), tp));
  }
  return stage;
}

Stage build_stage(const ModelSpec& m, const StageRange& range) {
  return build_stages(m, std::span(&range, 1));
}

}  // namespace trireme
