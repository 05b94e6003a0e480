#include "checkpoint/hf_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace trireme {
namespace {

constexpr std::string_view kGpt2Embedding = "wte.weight", kLlamaEmbedding = "embed_tokens.weight";

// Refuses what the architecture cannot be.
void check(const ModelSpec& m, std::string_view key, bool ok, std::string_view right) {
  if (!ok) bad_request("model.{}: a Hugging Face {} has {}", key, m.arch, right);
}

class Places {
 public:
  explicit Places(const ModelSpec& m) : m_(m) {}

  // One parameter that is one tensor.
  void add(const std::string& ours, const std::string& theirs, const Shape& shape) {
    out_.push_back({ours, shape, theirs, shape});
  }
  void llama_linear(const std::string& ours, const std::string& theirs, int64_t out, int64_t in, bool bias) {
    add(ours + ".weight", theirs + ".weight", {out, in});
    if (bias) add(ours + ".bias", theirs + ".bias", {out});
  }
  // GPT-2's Conv1D: weight [in, out_total], of which ours are the outputs [begin, begin + out).
  void conv1d(const std::string& ours, const std::string& theirs, int64_t out, int64_t in, int64_t begin,
              int64_t out_total) {
    out_.push_back({ours + ".weight", {out, in}, theirs + ".weight", {in, out_total}, true, begin});
    out_.push_back({ours + ".bias", {out}, theirs + ".bias", {out_total}, false, begin});
  }
  void layer_norm(const std::string& ours, const std::string& theirs) {
    add(ours + ".weight", theirs + ".weight", {m_.hidden});
    add(ours + ".bias", theirs + ".bias", {m_.hidden});
  }

  void gpt2() {
    int64_t h = m_.hidden;
    add("embed.tokens.weight", std::string(kGpt2Embedding), {m_.vocab, h});
    add("embed.positions.weight", "wpe.weight", {m_.max_positions, h});
    for (int64_t i = 0; i < m_.layers; i++) {
      std::string ours = fmt::format("blocks.{}.", i), theirs = fmt::format("h.{}.", i);
      layer_norm(ours + "norm1", theirs + "ln_1");
      conv1d(ours + "attn.q", theirs + "attn.c_attn", h, h, 0, 3 * h);
      conv1d(ours + "attn.k", theirs + "attn.c_attn", h, h, h, 3 * h);
      conv1d(ours + "attn.v", theirs + "attn.c_attn", h, h, 2 * h, 3 * h);
      conv1d(ours + "attn.o", theirs + "attn.c_proj", h, h, 0, h);
      layer_norm(ours + "norm2", theirs + "ln_2");
      conv1d(ours + "mlp.up", theirs + "mlp.c_fc", m_.ffn, h, 0, m_.ffn);
      conv1d(ours + "mlp.down", theirs + "mlp.c_proj", h, m_.ffn, 0, h);
    }
    layer_norm("norm", "ln_f");
  }

  // mixtral calls gate, down and up w1, w2 and w3.
  void experts(const std::string& ours, const std::string& theirs) {
    const bool mixtral = m_.arch == "mixtral";
    const std::string block = theirs + (mixtral ? "block_sparse_moe." : "mlp.");
    add(ours + "router.weight", block + "gate.weight", {m_.experts, m_.hidden});
    if (m_.router_bias) {
      add(ours + "router.bias", block + "gate.e_score_correction_bias", {m_.experts});
      out_.back().buffer = true;
    }
    auto part = [&](int64_t e, std::string_view name, std::string_view w, int64_t out, int64_t in) {
      add(fmt::format("{}experts.{}.{}.weight", ours, e, name),
          mixtral ? fmt::format("{}experts.{}.{}.weight", block, e, w)
                  : fmt::format("{}experts.{}.{}_proj.weight", block, e, name),
          {out, in});
    };
    for (int64_t e = 0; e < m_.experts; e++)
      part(e, "gate", "w1", m_.moe_ffn, m_.hidden), part(e, "up", "w3", m_.moe_ffn, m_.hidden);
    for (int64_t e = 0; e < m_.experts; e++) part(e, "down", "w2", m_.hidden, m_.moe_ffn);
    if (m_.shared_ffn == 0) return;
    const std::string shared = block + (m_.latent() ? "shared_experts." : "shared_expert.");
    llama_linear(ours + "shared.gate", shared + "gate_proj", m_.shared_ffn, m_.hidden, false);
    llama_linear(ours + "shared.up", shared + "up_proj", m_.shared_ffn, m_.hidden, false);
    llama_linear(ours + "shared.down", shared + "down_proj", m_.hidden, m_.shared_ffn, false);
    if (m_.shared_gate) add(ours + "shared_gate.weight", block + "shared_expert_gate.weight", {1, m_.hidden});
  }

  // DeepSeek's attention.
  void latent(const std::string& ours, const std::string& theirs) {
    const int64_t h = m_.hidden, q = m_.q_size();
    if (m_.q_rank > 0)
      llama_linear(ours + "q_a", theirs + "q_a_proj", m_.q_rank, h, m_.attn_bias);
    else
      llama_linear(ours + "q", theirs + "q_proj", q, h, false);
    llama_linear(ours + "kv_a", theirs + "kv_a_proj_with_mqa", m_.kv_rank + m_.rope_head_dim, h,
                 m_.attn_bias);
    if (m_.q_rank > 0) {
      add(ours + "q_norm.weight", theirs + "q_a_layernorm.weight", {m_.q_rank});
      llama_linear(ours + "q_b", theirs + "q_b_proj", q, m_.q_rank, false);
    }
    add(ours + "kv_norm.weight", theirs + "kv_a_layernorm.weight", {m_.kv_rank});
    llama_linear(ours + "kv_b", theirs + "kv_b_proj", m_.heads * (m_.nope_head_dim + m_.v_head_dim),
                 m_.kv_rank, false);
    llama_linear(ours + "o", theirs + "o_proj", h, m_.o_size(), m_.attn_bias);
  }
  void attention(const std::string& ours, const std::string& theirs) {
    const int64_t h = m_.hidden;
    if (m_.latent()) return latent(ours, theirs);
    llama_linear(ours + "q", theirs + "q_proj", m_.q_size(), h, m_.biased_qkv());
    llama_linear(ours + "k", theirs + "k_proj", m_.kv_size(), h, m_.biased_qkv());
    llama_linear(ours + "v", theirs + "v_proj", m_.kv_size(), h, m_.biased_qkv());
    if (m_.qk_norm) {
      add(ours + "q_norm.weight", theirs + "q_norm.weight", {m_.head_dim});
      add(ours + "k_norm.weight", theirs + "k_norm.weight", {m_.head_dim});
    }
    llama_linear(ours + "o", theirs + "o_proj", h, m_.q_size(), m_.attn_bias);
  }

  // The qwens, mixtral and deepseek too: they differ in attention's biases, norms and form, and in experts.
  void llama() {
    int64_t h = m_.hidden;
    add("embed.tokens.weight", std::string(kLlamaEmbedding), {m_.vocab, h});
    for (int64_t i = 0; i < m_.layers; i++) {
      std::string ours = fmt::format("blocks.{}.", i), theirs = fmt::format("layers.{}.", i);
      add(ours + "norm1.weight", theirs + "input_layernorm.weight", {h});
      attention(ours + "attn.", theirs + "self_attn.");
      add(ours + "norm2.weight", theirs + "post_attention_layernorm.weight", {h});
      if (m_.expert_block(i)) {
        experts(ours + "moe.", theirs);
        continue;
      }
      llama_linear(ours + "mlp.gate", theirs + "mlp.gate_proj", m_.ffn, h, m_.mlp_bias);
      llama_linear(ours + "mlp.up", theirs + "mlp.up_proj", m_.ffn, h, m_.mlp_bias);
      llama_linear(ours + "mlp.down", theirs + "mlp.down_proj", h, m_.ffn, m_.mlp_bias);
    }
    add("norm.weight", "norm.weight", {h});
  }

  std::vector<HfPlace> take() {
    if (!m_.tied) add("head.weight", std::string(kHfHead), {m_.vocab, m_.hidden});
    return std::move(out_);
  }

 private:
  const ModelSpec& m_;
  std::vector<HfPlace> out_;
};

bool is_gpt2(const ModelSpec& m) {
  if (std::find(std::begin(kArchs), std::end(kArchs), m.arch) == std::end(kArchs))
    bad_request("model.arch: no Hugging Face names for '{}'; known are {}", m.arch, fmt::join(kArchs, ", "));
  return m.arch == "gpt2";
}

}  // namespace

std::vector<HfPlace> hf_places(const ModelSpec& m) {
  Places places(m);
  const bool gpt2 = is_gpt2(m), qwen2 = m.arch.starts_with("qwen2"), qwen3 = m.arch.starts_with("qwen3"),
             deepseek = m.arch.starts_with("deepseek"),
             moe = m.arch == "mixtral" || m.arch.ends_with("_moe") || deepseek;
  check(m, "experts", m.moe() == moe, moe ? "experts" : "no experts: 0");
  if (m.arch == "qwen2") check(m, "qkv_bias", m.qkv_bias, "biases on q, k and v: true");
  if (!qwen2) check(m, "qkv_bias", !m.qkv_bias, "no biases on q, k and v alone: false");
  check(m, "qk_norm", m.qk_norm == qwen3, qwen3 ? "normalised heads: true" : "no norms of q and k: false");
  if (gpt2) {
    check(m, "norm", m.norm == "layer", "LayerNorm (layer)");
    check(m, "positions", m.positions == "learned", "learned positions");
    check(m, "activation", m.activation != "swiglu", "gelu or gelu_tanh");
    check(m, "attn_bias", m.attn_bias, "biases: true");
    check(m, "mlp_bias", m.mlp_bias, "biases: true");
    check(m, "kv_heads", m.kv_heads == m.heads, "as many as heads");
    check(m, "head_dim", m.q_size() == m.hidden, "hidden / heads");
    places.gpt2();
  } else {
    check(m, "norm", m.norm == "rms", "RMSNorm (rms)");
    check(m, "positions", m.positions == "rope", "rope");
    check(m, "activation", m.activation == "swiglu", "swiglu");
    if (qwen2 || m.arch == "mixtral") check(m, "attn_bias", !m.attn_bias, "no bias on o: false");
    if (m.arch != "llama") check(m, "mlp_bias", !m.mlp_bias, "no such biases: false");
    const bool gated = m.arch == "qwen2_moe", shared = gated || deepseek;
    check(m, "shared_ffn", (m.shared_ffn > 0) == shared, shared ? "a shared expert" : "none: 0");
    check(m, "shared_gate", m.shared_gate == gated, gated ? "a gate: true" : "none: false");
    const bool biased = m.arch == "deepseek_v3";
    check(m, "kv_rank", m.latent() == deepseek, deepseek ? "latent attention" : "none: 0");
    check(m, "router_bias", m.router_bias == biased, biased ? "a router's bias: true" : "none: false");
    if (m.arch == "mixtral") check(m, "moe_ffn", m.moe_ffn == m.ffn, "experts of width ffn");
    places.llama();
  }
  return places.take();
}

std::string_view hf_embedding(const ModelSpec& m) {
  return m.arch == "gpt2" ? kGpt2Embedding : kLlamaEmbedding;
}

std::string_view hf_prefix(const ModelSpec& m) {
  return is_gpt2(m) ? "transformer." : "model.";
}

bool hf_is_buffer(const ModelSpec& m, std::string_view name) {
  std::string_view head = is_gpt2(m) ? "h." : "layers.";
  if (!name.starts_with(head)) return false;
  name.remove_prefix(head.size());
  size_t digits = 0;
  while (digits < name.size() && name[digits] >= '0' && name[digits] <= '9') digits++;
  if (digits == 0) return false;
  name.remove_prefix(digits);
  if (is_gpt2(m)) return name == ".attn.bias" || name == ".attn.masked_bias";
  return name == ".self_attn.rotary_emb.inv_freq";
}

}  // namespace trireme
