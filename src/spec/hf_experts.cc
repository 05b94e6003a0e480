#include "spec/hf_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace trireme {
namespace {

// The qwens' dense layers: those listed, which must be the first ones, and of the rest all but every
// n-th.
void read_dense_layers(HfObject& o, ModelSpec& m) {
  m.expert_step = o.whole("decoder_sparse_step", 1, kMaxLayers);
  if (const auto* dense = o.find("mlp_only_layers")) {
    bool first = dense->is_array();
    for (size_t i = 0; first && i < dense->size(); i++) first = (*dense)[i] == int64_t(i);
    if (!first)
      o.problem("mlp_only_layers", "only [] and the first layers, as [0, 1, 2], are supported");
    else
      m.dense_layers = int64_t(dense->size());
  }
  if (o.clean() && m.expert_blocks() == 0)
    o.problem("mlp_only_layers", "leaves no layer of experts: that is not supported");
}

// The sizes of DeepSeek's latent attention.
void read_latent(HfObject& o, ModelSpec& m) {
  m.kv_rank = o.whole("kv_lora_rank", m.kv_rank, kMaxWidth);
  const bool none = o.given("q_lora_rank") && !o.find("q_lora_rank");  // null
  m.q_rank = none ? 0 : o.whole("q_lora_rank", m.q_rank, kMaxWidth);
  m.nope_head_dim = o.whole("qk_nope_head_dim", m.nope_head_dim, kMaxWidth);
  m.rope_head_dim = o.whole("qk_rope_head_dim", m.rope_head_dim, kMaxWidth);
  m.v_head_dim = o.whole("v_head_dim", m.v_head_dim, kMaxWidth);
  m.head_dim = m.nope_head_dim + m.rope_head_dim;
  o.ignore(std::array<std::string_view, 2>{"head_dim", "qk_head_dim"});  // follow from those
  if (m.arch == "deepseek_v3") m.rope_interleaved = o.flag("rope_interleave", true);
  if (o.clean() && m.rope_head_dim % 2 != 0)
    o.problem("qk_rope_head_dim", fmt::format("{} is odd; rotary positions turn pairs", m.rope_head_dim));
  if (o.clean() && m.kv_heads != m.heads)
    o.problem("num_key_value_heads",
              fmt::format("{} is not num_attention_heads = {}: latent keys are of every head", m.kv_heads,
                          m.heads));
  m.attn_bias = o.flag("attention_bias", false);
  if (m.attn_bias && m.q_rank == 0)
    o.problem("attention_bias", "true is not supported without q_lora_rank; false is");
}

void read_deepseek_groups(HfObject& o, ModelSpec& m, bool v3) {
  const std::string method = o.text("topk_method", v3 ? "noaux_tc" : "greedy");
  const bool known = v3 ? method == "noaux_tc" : method == "greedy" || method == "group_limited_greedy";
  if (!known)
    o.problem("topk_method", fmt::format("{} is not supported; {}", shown(method),
                                         v3 ? "noaux_tc is" : "greedy and group_limited_greedy are"));
  const int64_t groups = o.whole("n_group", v3 ? 8 : 1, 65536),
                top = o.whole("topk_group", v3 ? 4 : 1, 65536);
  if (method == "greedy") return;
  m.expert_groups = groups, m.top_groups = top;
  if (!o.clean()) return;
  if (m.experts % groups != 0)
    o.problem("n_group", fmt::format("{} does not divide n_routed_experts = {}", groups, m.experts));
  else if (top > groups || m.experts_per_token > top * (m.experts / groups))
    o.problem("topk_group", fmt::format("{} of {} groups have not the experts of a token", top, groups));
  else if (v3 && m.experts / groups < 2)
    o.problem("n_group", fmt::format("{} leaves groups of one expert", groups));
}

}  // namespace

void read_deepseek(HfObject& o, std::string_view file, ModelSpec& m, std::vector<std::string>* notes) {
  const bool v3 = m.arch == "deepseek_v3";
  read_latent(o, m);
  m.experts = o.whole("n_routed_experts", v3 ? 256 : 64, 65536);
  m.experts_per_token = o.whole("num_experts_per_tok", v3 ? std::optional<int64_t>(8) : std::nullopt, 65536);
  if (o.clean() && m.experts_per_token > m.experts)
    o.problem("num_experts_per_tok",
              fmt::format("{} is more than the {} experts", m.experts_per_token, m.experts));
  m.moe_ffn = o.whole("moe_intermediate_size", v3 ? 2048 : 1407, 4 * kMaxWidth);
  m.shared_ffn = o.whole("n_shared_experts", v3 ? 1 : 2, 1024) * m.moe_ffn;
  m.dense_layers = o.whole("first_k_dense_replace", v3 ? 3 : 0, kMaxLayers, 0);
  if (o.clean() && m.expert_blocks() == 0)
    o.problem("first_k_dense_replace", "leaves no layer of experts: that is not supported");
  read_deepseek_groups(o, m, v3);
  m.routed_scale = o.number("routed_scaling_factor", v3 ? 2.5 : 1.0, 1e-6, 1e6);
  m.norm_topk = o.flag("norm_topk_prob", v3);
  if (!v3 && m.norm_topk) o.problem("norm_topk_prob", "true is not supported; transformers ignores it");
  const std::string score = o.text("scoring_func", m.router_score);
  if (score != m.router_score)
    o.problem("scoring_func", fmt::format("{} is not supported; {} is", shown(score), m.router_score));
  if (o.whole("moe_layer_freq", 1, kMaxLayers) != 1) o.problem("moe_layer_freq", "only 1 is supported");
  if (!v3 && o.flag("mlp_bias", false)) o.problem("mlp_bias", "true is not supported; only false is");
  o.ignore(std::array<std::string_view, 3>{"ep_size", "seq_aux", "output_router_logits"});
  const double alpha = o.number("aux_loss_alpha", 0.0, 0, 1e6);
  if (alpha > 0 && notes)
    notes->push_back(fmt::format("{}: aux_loss_alpha: {} is not added to the loss", file, alpha));
  const int64_t more = o.whole("num_nextn_predict_layers", 0, kMaxLayers, 0);
  if (more > 0 && notes)
    notes->push_back(fmt::format(
        "{}: num_nextn_predict_layers: {}: layers that predict further tokens are not built", file, more));
}

void read_experts(HfObject& o, std::string_view file, ModelSpec& m, std::vector<std::string>* notes) {
  const bool mixtral = m.arch == "mixtral";
  if (mixtral || !o.given("num_experts"))
    m.experts = o.whole("num_local_experts", m.experts, 65536);
  else
    m.experts = o.whole("num_experts", m.experts, 65536);
  m.experts_per_token = o.whole("num_experts_per_tok", m.experts_per_token, 65536);
  if (o.clean() && m.experts_per_token > m.experts)
    o.problem("num_experts_per_tok",
              fmt::format("{} is more than the {} experts", m.experts_per_token, m.experts));
  m.moe_ffn =
      mixtral ? m.ffn : o.whole("moe_intermediate_size", m.arch == "qwen2_moe" ? 1408 : 768, 4 * kMaxWidth);
  m.norm_topk = mixtral || o.flag("norm_topk_prob", false);
  if (m.arch == "qwen2_moe") m.shared_ffn = o.whole("shared_expert_intermediate_size", 5632, 4 * kMaxWidth);
  if (mixtral && o.number("router_jitter_noise", 0.0, 0, 1) != 0)
    o.problem("router_jitter_noise", "only 0 is supported");
  read_dense_layers(o, m);
  const bool added = o.flag("output_router_logits", false);
  const double coefficient = o.number("router_aux_loss_coef", 0.001, 0, 1e6);
  if (added && coefficient > 0 && notes)
    notes->push_back(
        fmt::format("{}: router_aux_loss_coef: {} is added to the loss where the run has moe.aux_loss = {}",
                    file, coefficient, coefficient));
}

}  // namespace trireme
