// The config.json of a model: the inverse of hf_config.cc.
#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "spec/hf_config.h"

namespace trireme {
namespace {

using OrderedJson = nlohmann::ordered_json;  // keys in the order that people read

void must(bool ok, std::string_view key, std::string_view value, const ModelSpec& m, std::string_view right) {
  if (!ok)
    bad_request("model.{}: {} cannot be exported: Hugging Face's {} has {}", key, value, m.arch, right);
}

std::string_view architecture_of(std::string_view arch) {
  if (arch == "gpt2") return "GPT2LMHeadModel";
  if (arch == "llama") return "LlamaForCausalLM";
  if (arch == "mixtral") return "MixtralForCausalLM";
  if (arch == "qwen2_moe") return "Qwen2MoeForCausalLM";
  if (arch == "qwen3_moe") return "Qwen3MoeForCausalLM";
  if (arch == "deepseek_v2") return "DeepseekV2ForCausalLM";
  if (arch == "deepseek_v3") return "DeepseekV3ForCausalLM";
  return arch == "qwen2" ? "Qwen2ForCausalLM" : "Qwen3ForCausalLM";
}

void write_gpt2(const ModelSpec& m, OrderedJson& j) {
  must(m.norm == "layer", "norm", m.norm, m, "layer");
  must(m.positions == "learned", "positions", m.positions, m, "learned");
  must(m.activation != "swiglu", "activation", m.activation, m, "gelu_tanh or gelu");
  must(m.attn_bias, "attn_bias", "false", m, "biases");
  must(m.mlp_bias, "mlp_bias", "false", m, "biases");
  must(!m.qkv_bias, "qkv_bias", "true", m, "attn_bias");
  must(!m.qk_norm, "qk_norm", "true", m, "no norms of q and k");
  must(m.kv_heads == m.heads, "kv_heads", std::to_string(m.kv_heads), m, "as many as heads");
  must(m.q_size() == m.hidden, "head_dim", std::to_string(m.head_dim), m, "hidden / heads");
  j["n_embd"] = m.hidden;
  j["n_layer"] = m.layers;
  j["n_head"] = m.heads;
  j["n_inner"] = m.ffn;
  j["n_positions"] = m.max_positions;
  j["n_ctx"] = m.max_positions;
  j["activation_function"] = m.activation == "gelu_tanh" ? "gelu_new" : "gelu";
  j["layer_norm_epsilon"] = m.norm_eps;
  j["attn_pdrop"] = m.attn_pdrop;
  j["embd_pdrop"] = m.embd_pdrop;
  j["resid_pdrop"] = m.resid_pdrop;
}

// What only DeepSeek's models have.
void must_have_no_latent(const ModelSpec& m) {
  must(!m.latent(), "kv_rank", std::to_string(m.kv_rank), m, "keys and values of their own");
  must(m.router_score == "softmax", "router_score", m.router_score, m, "softmax");
  must(!m.router_bias, "router_bias", "true", m, "none");
  must(m.expert_groups == 1, "expert_groups", std::to_string(m.expert_groups), m, "no groups of experts");
  must(m.routed_scale == 1, "routed_scale", fmt::format("{}", m.routed_scale), m, "1");
}

void write_latent(const ModelSpec& m, OrderedJson& j, bool v3) {
  must(m.latent(), "kv_rank", "0", m, "latent attention");
  must(v3 || m.rope_interleaved, "rope_interleaved", "false", m, "true");
  j["kv_lora_rank"] = m.kv_rank;
  j["q_lora_rank"] = m.q_rank > 0 ? OrderedJson(m.q_rank) : OrderedJson(nullptr);
  j["qk_nope_head_dim"] = m.nope_head_dim;
  j["qk_rope_head_dim"] = m.rope_head_dim;
  j["v_head_dim"] = m.v_head_dim;
  j["attention_bias"] = m.attn_bias;
  if (v3) j["rope_interleave"] = m.rope_interleaved;
}

void write_deepseek(const ModelSpec& m, OrderedJson& j) {
  const bool v3 = m.arch == "deepseek_v3", grouped = v3 || m.expert_groups > 1;
  write_latent(m, j, v3);
  must(m.moe(), "experts", "0", m, "experts");
  must(m.expert_step == 1, "expert_step", std::to_string(m.expert_step), m, "1");
  must(!m.mlp_bias, "mlp_bias", "true", m, "false");
  must(!m.shared_gate, "shared_gate", "true", m, "none");
  must(m.shared_ffn > 0 && m.shared_ffn % m.moe_ffn == 0, "shared_ffn", std::to_string(m.shared_ffn), m,
       "a multiple of moe_ffn");
  must(v3 == m.router_bias, "router_bias", m.router_bias ? "true" : "false", m, v3 ? "true" : "false");
  must((m.router_score == "sigmoid") == v3, "router_score", m.router_score, m, v3 ? "sigmoid" : "softmax");
  must((m.group_worth == "pair") == v3 || !grouped, "group_worth", m.group_worth, m, v3 ? "pair" : "largest");
  must(v3 || !m.norm_topk, "norm_topk", "true", m, "weights as they are");
  j["n_routed_experts"] = m.experts;
  j["num_experts_per_tok"] = m.experts_per_token;
  j["moe_intermediate_size"] = m.moe_ffn;
  j["n_shared_experts"] = m.shared_ffn / m.moe_ffn;
  j["first_k_dense_replace"] = m.dense_layers;
  j["n_group"] = grouped ? OrderedJson(m.expert_groups) : OrderedJson(nullptr);
  j["topk_group"] = grouped ? OrderedJson(m.top_groups) : OrderedJson(nullptr);
  j["topk_method"] = v3 ? "noaux_tc" : grouped ? "group_limited_greedy" : "greedy";
  j["scoring_func"] = m.router_score;
  j["routed_scaling_factor"] = m.routed_scale;
  j["norm_topk_prob"] = m.norm_topk;
  if (v3) j["num_nextn_predict_layers"] = 0;
}

// What tells llama, the qwens and mixtral from one another.
void write_biases_and_norms(const ModelSpec& m, OrderedJson& j) {
  const bool llama = m.arch == "llama", qwen2 = m.arch.starts_with("qwen2"),
             qwen3 = m.arch.starts_with("qwen3"), chosen = m.arch == "qwen2_moe";
  must(chosen || m.qkv_bias == qwen2, "qkv_bias", m.qkv_bias ? "true" : "false", m, qwen2 ? "true" : "false");
  must(m.qk_norm == qwen3, "qk_norm", m.qk_norm ? "true" : "false", m, qwen3 ? "true" : "false");
  must(llama || !m.mlp_bias, "mlp_bias", "true", m, "false");
  must(llama || qwen3 || !m.attn_bias, "attn_bias", "true", m,
       qwen2 ? "biases on q, k and v alone" : "no biases");
  if (llama || qwen3) j["attention_bias"] = m.attn_bias;
  if (chosen) j["qkv_bias"] = m.qkv_bias;
  if (llama) j["mlp_bias"] = m.mlp_bias;
  if (llama) return;
  j["sliding_window"] = nullptr;
  if (qwen2 || qwen3) j["use_sliding_window"] = false;
}

void write_experts(const ModelSpec& m, OrderedJson& j) {
  const bool mixtral = m.arch == "mixtral", shared = m.arch == "qwen2_moe";
  const std::string is_shared = std::to_string(m.shared_ffn), experts = std::to_string(m.experts);
  must(!mixtral || (m.dense_layers == 0 && m.expert_step == 1), "dense_layers",
       std::to_string(m.dense_layers), m, "experts in every block");
  if (!mixtral && !m.arch.ends_with("_moe")) return must(!m.moe(), "experts", experts, m, "no experts");
  must(m.moe(), "experts", experts, m, "experts");
  must(shared == (m.shared_ffn > 0), "shared_ffn", is_shared, m, shared ? "a shared expert" : "none");
  must(shared == m.shared_gate, "shared_gate", m.shared_gate ? "true" : "false", m,
       shared ? "a gate" : "none");
  must(!mixtral || m.norm_topk, "norm_topk", "false", m, "weights that sum to 1");
  must(!mixtral || m.moe_ffn == m.ffn, "moe_ffn", std::to_string(m.moe_ffn), m, "ffn");
  j[mixtral ? "num_local_experts" : "num_experts"] = m.experts;
  j["num_experts_per_tok"] = m.experts_per_token;
  if (mixtral) return;
  j["moe_intermediate_size"] = m.moe_ffn;
  if (shared) j["shared_expert_intermediate_size"] = m.shared_ffn;
  j["norm_topk_prob"] = m.norm_topk;
  j["decoder_sparse_step"] = m.expert_step;
  j["mlp_only_layers"] = OrderedJson::array();
  for (int64_t i = 0; i < m.dense_layers; i++) j["mlp_only_layers"].push_back(i);
}

// llama, the qwens, mixtral and deepseek.
void write_llama(const ModelSpec& m, OrderedJson& j) {
  must(m.norm == "rms", "norm", m.norm, m, "rms");
  must(m.positions == "rope", "positions", m.positions, m, "rope");
  must(m.activation == "swiglu", "activation", m.activation, m, "swiglu");
  const bool deepseek = m.arch.starts_with("deepseek");
  must(m.arch.starts_with("qwen3") || m.arch == "deepseek_v3" || m.hidden % m.heads == 0, "heads",
       std::to_string(m.heads), m, "a divisor of hidden");
  j["hidden_size"] = m.hidden;
  j["intermediate_size"] = m.ffn;
  j["num_hidden_layers"] = m.layers;
  j["num_attention_heads"] = m.heads;
  j["num_key_value_heads"] = m.kv_heads;
  if (!deepseek) j["head_dim"] = m.head_dim;
  j["max_position_embeddings"] = m.max_positions;
  j["hidden_act"] = "silu";
  j["rms_norm_eps"] = m.norm_eps;
  j["attention_dropout"] = m.attn_pdrop;
  if (m.embd_pdrop > 0) j["embd_pdrop"] = m.embd_pdrop;  // ours: transformers has no such dropout there
  if (m.resid_pdrop > 0) j["resid_pdrop"] = m.resid_pdrop;
  if (deepseek) {
    write_deepseek(m, j);
  } else {
    must_have_no_latent(m);
    write_biases_and_norms(m, j);
    write_experts(m, j);
  }
  j["rope_theta"] = m.rope_theta;
  const RopeScaling& s = m.rope_scaling;
  if (s.type == "none") return;
  OrderedJson& r = j["rope_scaling"];
  r["rope_type"] = s.type;
  r["factor"] = s.factor;
  if (s.type == "yarn") {
    r["beta_fast"] = s.beta_fast;
    r["beta_slow"] = s.beta_slow;
    if (s.mscale > 0) r["mscale"] = s.mscale;
    if (s.mscale_all_dim > 0) r["mscale_all_dim"] = s.mscale_all_dim;
    if (s.attention_factor > 0) r["attention_factor"] = s.attention_factor;
    r["original_max_position_embeddings"] = s.original_max_positions;
  }
  if (s.type != "llama3") return;
  r["low_freq_factor"] = s.low_freq_factor;
  r["high_freq_factor"] = s.high_freq_factor;
  r["original_max_position_embeddings"] = s.original_max_positions;
}

}  // namespace

std::string hf_config_json(const ModelSpec& m, const HfExport& e) {
  if (std::string why = ModelSpec::refusal(m.arch); !why.empty()) bad_request("model.arch: {}", why);
  OrderedJson j;
  j["architectures"] = {architecture_of(m.arch)};
  j["model_type"] = m.arch;
  j["vocab_size"] = m.vocab;
  if (m.arch == "gpt2")
    write_gpt2(m, j);
  else
    write_llama(m, j);
  j["initializer_range"] = m.init_std;
  j["tie_word_embeddings"] = m.tied;
  // null, not left out: transformers would put its own default in place of a missing id.
  auto id = [](const std::optional<int64_t>& v) { return v ? OrderedJson(*v) : OrderedJson(nullptr); };
  j["bos_token_id"] = id(e.bos);
  j["eos_token_id"] = e.eos.size() > 1 ? OrderedJson(e.eos)
                      : e.eos.empty()  ? OrderedJson(nullptr)
                                       : OrderedJson(e.eos[0]);
  if (e.pad) j["pad_token_id"] = *e.pad;
  j["torch_dtype"] = e.dtype;
  j["use_cache"] = true;
  return j.dump(2) + "\n";
}

}  // namespace trireme
