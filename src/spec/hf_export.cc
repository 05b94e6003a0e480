// The config.json of a model: the inverse of hf_config.cc.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "spec/hf_config.h"

namespace trireme {
namespace {

using Json = nlohmann::ordered_json;  // keys in the order that people read

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
  return arch == "qwen2" ? "Qwen2ForCausalLM" : "Qwen3ForCausalLM";
}

void write_gpt2(const ModelSpec& m, Json& j) {
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

// What tells llama, the qwens and mixtral from one another.
void write_biases_and_norms(const ModelSpec& m, Json& j) {
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

void write_experts(const ModelSpec& m, Json& j) {
  const bool mixtral = m.arch == "mixtral", shared = m.arch == "qwen2_moe";
  const std::string is_shared = std::to_string(m.shared_ffn), experts = std::to_string(m.experts);
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
  j["decoder_sparse_step"] = 1;
  j["mlp_only_layers"] = Json::array();
}

// llama, the qwens and mixtral.
void write_llama(const ModelSpec& m, Json& j) {
  must(m.norm == "rms", "norm", m.norm, m, "rms");
  must(m.positions == "rope", "positions", m.positions, m, "rope");
  must(m.activation == "swiglu", "activation", m.activation, m, "swiglu");
  must(m.arch.starts_with("qwen3") || m.hidden % m.heads == 0, "heads", std::to_string(m.heads), m,
       "a divisor of hidden");
  j["hidden_size"] = m.hidden;
  j["intermediate_size"] = m.ffn;
  j["num_hidden_layers"] = m.layers;
  j["num_attention_heads"] = m.heads;
  j["num_key_value_heads"] = m.kv_heads;
  j["head_dim"] = m.head_dim;
  j["max_position_embeddings"] = m.max_positions;
  j["hidden_act"] = "silu";
  j["rms_norm_eps"] = m.norm_eps;
  j["attention_dropout"] = m.attn_pdrop;
  if (m.embd_pdrop > 0) j["embd_pdrop"] = m.embd_pdrop;  // ours: transformers has no such dropout there
  if (m.resid_pdrop > 0) j["resid_pdrop"] = m.resid_pdrop;
  write_biases_and_norms(m, j);
  write_experts(m, j);
  j["rope_theta"] = m.rope_theta;
  const RopeScaling& s = m.rope_scaling;
  if (s.type == "none") return;
  Json& r = j["rope_scaling"];
  r["rope_type"] = s.type;
  r["factor"] = s.factor;
  if (s.type != "llama3") return;
  r["low_freq_factor"] = s.low_freq_factor;
  r["high_freq_factor"] = s.high_freq_factor;
  r["original_max_position_embeddings"] = s.original_max_positions;
}

}  // namespace

std::string hf_config_json(const ModelSpec& m, const HfExport& e) {
  if (std::string why = ModelSpec::refusal(m.arch); !why.empty()) bad_request("model.arch: {}", why);
  Json j;
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
  auto id = [](const std::optional<int64_t>& v) { return v ? Json(*v) : Json(nullptr); };
  j["bos_token_id"] = id(e.bos);
  j["eos_token_id"] = e.eos.size() > 1 ? Json(e.eos) : e.eos.empty() ? Json(nullptr) : Json(e.eos[0]);
  if (e.pad) j["pad_token_id"] = *e.pad;
  j["torch_dtype"] = e.dtype;
  j["use_cache"] = true;
  return j.dump(2) + "\n";
}

}  // namespace trireme
