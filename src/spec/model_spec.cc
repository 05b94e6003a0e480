#include "spec/model_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "spec/suggest.h"
#include "spec/toml.h"

namespace trireme {

std::string ModelSpec::refusal(std::string_view arch) {
  // Known by name, so that nobody takes a missing architecture for a misspelt one.
  static constexpr std::string_view kKnown[] = {
      "qwen2_vl", "qwen2_5_vl", "qwen3_vl",     "qwen3_next", "mistral", "gemma",  "gemma2",
      "gemma3",   "phi",        "phi3",         "gpt_neox",   "gpt_neo", "gptj",   "opt",
      "bloom",    "falcon",     "mpt",          "olmo",       "olmo2",   "cohere", "glm4",
      "granite",  "starcoder2", "deepseek_v32", "llama4"};
  if (std::find(std::begin(kArchs), std::end(kArchs), arch) != std::end(kArchs)) return "";
  if (std::find(std::begin(kKnown), std::end(kKnown), arch) != std::end(kKnown))
    return fmt::format("{} is not supported by this version; {} are", shown(arch), joined(kArchs));
  std::vector<std::string> names(std::begin(kArchs), std::end(kArchs));
  std::string meant = suggest(arch, names);
  return fmt::format("{} is not known, {}; give one of {}", shown(arch),
                     meant.empty() ? "nothing is like it" : "did you mean \"" + meant + "\"?",
                     joined(kArchs));
}

namespace {
void set_deepseek(ModelSpec& m, bool v3) {
  m.norm_eps = 1e-6;
  m.kv_rank = 512, m.q_rank = 1536, m.nope_head_dim = 128, m.rope_head_dim = 64, m.v_head_dim = 128;
  m.rope_interleaved = true;
  m.dense_layers = v3 ? 3 : 1;
  m.experts = v3 ? 256 : 64, m.experts_per_token = v3 ? 8 : 6;
  m.norm_topk = v3, m.router_bias = v3;
  if (!v3) return;
  m.router_score = "sigmoid", m.group_worth = "pair";
  m.expert_groups = 8, m.top_groups = 4;
  m.routed_scale = 2.5;
}
}  // namespace

ModelSpec ModelSpec::of(std::string_view arch) {
  if (std::string why = refusal(arch); !why.empty()) bad_request("model.arch: {}", why);
  ModelSpec m;
  m.arch = arch;
  if (arch == "gpt2") {
    m.norm = "layer";
    m.activation = "gelu_tanh";
    m.positions = "learned";
    m.attn_bias = m.mlp_bias = m.tied = true;
  }
  const bool qwen2 = arch == "qwen2" || arch == "qwen2_moe", qwen3 = arch == "qwen3" || arch == "qwen3_moe";
  if (qwen2 || qwen3) {
    m.norm_eps = 1e-6;
    m.rope_theta = 1e6;
    m.qkv_bias = qwen2;
    m.qk_norm = qwen3;
  }
  if (arch == "deepseek_v2" || arch == "deepseek_v3") set_deepseek(m, arch == "deepseek_v3");
  if (arch == "mixtral") m.rope_theta = 1e6, m.experts = 8, m.experts_per_token = 2;
  if (arch == "qwen3_moe") m.experts = 128, m.experts_per_token = 8;
  if (arch == "qwen2_moe") {
    m.experts = 60, m.experts_per_token = 4;
    m.norm_topk = false, m.shared_gate = true;
  }
  return m;
}

void ModelSpec::finish(int64_t seq_len) {
  auto sane = [](int64_t n) {
    return n > 0 && n <= int64_t(kMaxWidth);
  };  // else leave it to the range checks
  if (kv_heads == 0) kv_heads = heads;
  if (latent()) {
    if (head_dim == 0 && nope_head_dim <= int64_t(kMaxWidth) && rope_head_dim <= int64_t(kMaxWidth))
      head_dim = nope_head_dim + rope_head_dim;
    if (v_head_dim == 0) v_head_dim = nope_head_dim;
  }
  if (head_dim == 0 && sane(heads) && sane(hidden) && hidden % heads == 0) head_dim = hidden / heads;
  if (ffn == 0 && sane(hidden)) ffn = arch == "gpt2" ? 4 * hidden : (8 * hidden / 3 + 255) / 256 * 256;
  if (experts > 0 && experts_per_token == 0) experts_per_token = std::min<int64_t>(2, experts);
  if (experts > 0 && moe_ffn == 0) moe_ffn = ffn;
  if (experts > 0 && shared_gate && shared_ffn == 0 && sane(experts_per_token) &&
      moe_ffn <= int64_t(kMaxWidth))
    shared_ffn = experts_per_token * moe_ffn;
  if (max_positions == 0) max_positions = seq_len;
}

}  // namespace trireme
