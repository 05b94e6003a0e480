// The architecture of a model, as numbers: what layers are built from and costs are counted from.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "spec/field.h"

namespace trireme {

// Stretches rotary frequencies for longer contexts. "linear": positions / factor. "llama3" (Llama 3.1):
// frequencies whose wavelength exceeds original_max_positions / low_freq_factor are divided by factor, those
// below original_max_positions / high_freq_factor stay, and those between are blended. "yarn" (2309.00071):
// pairs that turn more than beta_fast times in original_max_positions stay, those that turn less than
// beta_slow times are divided by factor, those between blended by their number; and attention is sharpened.
struct RopeScaling {
  std::string type = "none";
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_max_positions = 8192;
  double beta_fast = 32, beta_slow = 1;
  // What is rotated grows by attention_factor (0: by m(mscale) / m(mscale_all_dim), or by m(1) where one of
  // them is 0), with m(s) = 1 + 0.1 s log(factor); scores of latent attention by m(mscale_all_dim)^2 too.
  double mscale = 0, mscale_all_dim = 0, attention_factor = 0;
  bool operator==(const RopeScaling&) const = default;

  template <class V>
  void visit(V& v) {
    static constexpr std::string_view kTypes[] = {"none", "linear", "llama3", "yarn"};
    v("type", type, "", "how rotary frequencies are stretched", one_of(kTypes));
    v("factor", factor, "", "context is stretched by this", between(1, 1e6));
    v("low_freq_factor", low_freq_factor, "", "llama3: slow frequencies turn fewer times than this",
      above(0));
    v("high_freq_factor", high_freq_factor, "", "llama3: fast frequencies turn more times than this",
      above(0));
    v("original_max_positions", original_max_positions, "tokens", "llama3, yarn: context before stretching",
      between(1, 1e9));
    v("beta_fast", beta_fast, "", "yarn: pairs that turn more often in that context stay as they are",
      above(0));
    v("beta_slow", beta_slow, "", "yarn: pairs that turn fewer times are divided by factor", above(0));
    v("mscale", mscale, "", "yarn: weight of log(factor) in what rotated queries and keys grow by; 0 = 1",
      between(0, 1e3));
    v("mscale_all_dim", mscale_all_dim, "",
      "yarn: the same of what they shrink by, which scales latent attention's scores instead; 0 = neither",
      between(0, 1e3));
    v("attention_factor", attention_factor, "",
      "yarn: what rotated queries and keys grow by; 0 = by factor, mscale and mscale_all_dim",
      between(0, 1e3));
  }
};

inline constexpr std::string_view kArchs[] = {
    "gpt2", "llama", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3"};

// Largest accepted sizes: far above any model, small enough that no product of a few overflows 64 bits
// unseen.
inline constexpr double kMaxVocab = 2147483647, kMaxLayers = 65536, kMaxWidth = 16777216;

struct ModelSpec {
  std::string from;
  std::string arch = "llama";
  int64_t vocab = 4096;
  int64_t layers = 6;
  int64_t hidden = 384;
  int64_t heads = 6;
  // 0 = derived, until finish() puts the number in its place.
  int64_t kv_heads = 0;       // heads
  int64_t head_dim = 0;       // hidden / heads
  int64_t ffn = 0;            // llama: 8/3 hidden rounded up to a multiple of 256; gpt2: 4 hidden
  int64_t max_positions = 0;  // seq_len
  // A feed-forward of experts in every block (docs/moe.md); experts = 0: a dense one of width ffn.
  int64_t experts = 0;
  int64_t experts_per_token = 0;  // 2, or 1 of one expert
  int64_t moe_ffn = 0;            // of an expert: ffn
  int64_t shared_ffn = 0;         // of the shared expert; with a gate: experts_per_token * moe_ffn
  int64_t dense_layers = 0;       // the first so many blocks are dense, of width ffn
  int64_t expert_step = 1;        // beyond them every n-th block, counted from 1, has experts
  // Groups of experts, of which a token visits the worthiest (DeepSeek's node limit).
  int64_t expert_groups = 1, top_groups = 1;
  // Multi-head latent attention (docs/latent_attention.md); kv_rank = 0: keys and values of their own.
  int64_t kv_rank = 0, q_rank = 0;  // of compressed keys and values; of compressed queries, 0 = none
  int64_t nope_head_dim = 0, rope_head_dim = 0;  // of a head of q and k: without positions, with
  int64_t v_head_dim = 0;                        // nope_head_dim
  // Set by of(arch).
  std::string norm = "rms";           // "rms" | "layer"
  std::string activation = "swiglu";  // "swiglu" | "gelu_tanh" | "gelu"
  std::string positions = "rope";     // "rope" | "learned"
  bool attn_bias = false;             // on q, k, v and o
  bool qkv_bias = false;              // on q, k and v alone
  bool qk_norm = false;               // RMSNorm of each head of q and k, before rope
  bool mlp_bias = false;
  bool norm_topk = true;                 // a token's weights of its experts sum to 1
  bool shared_gate = false;              // the shared expert's answer times sigmoid(w . x)
  bool router_bias = false;              // a bias that chooses experts and weighs nothing
  std::string router_score = "softmax";  // "softmax" | "sigmoid"
  std::string group_worth = "largest";   // "largest" | "pair"
  double routed_scale = 1;               // of the weights of a token's experts
  bool rope_interleaved = false;         // pairs (2i, 2i + 1) turn
  bool tied = false;                     // head.weight is embed.tokens.weight
  double norm_eps = 1e-5;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  double init_std = 0.02, embed_std = 0, head_std = 0;
  // Dropout while training: of embeddings, of attention's probabilities, of what attention and feed-forward
  // add to the residual stream. No part of what the weights mean.
  double embd_pdrop = 0, attn_pdrop = 0, resid_pdrop = 0;
  bool operator==(const ModelSpec&) const = default;

  // What an architecture sets, derived sizes still 0. gpt2: LayerNorm, tanh gelu, learned positions, biases,
  // tied head. llama: RMSNorm, swiglu, rope, no biases, own head. qwen2: llama with biases on q, k and v.
  // qwen3: llama with normalised heads of q and k. mixtral: llama with 8 experts, 2 a token. qwen2_moe: qwen2
  // with 60 experts, 4 a token, weights as they are, and a gated shared one. qwen3_moe: qwen3 with 128, 8 a
  // token. deepseek_v2, deepseek_v3: latent attention, a dense first block (three), 64 experts, 6 a token,
  // and two shared ones (256, 8 a token of 4 of 8 groups by sigmoid scores with a bias, and one). Another
  // name is a bad request that says what works.
  static ModelSpec of(std::string_view arch);
  // Why an architecture cannot be had, and which can; empty = it can.
  static std::string refusal(std::string_view arch);

  // Puts numbers in place of the zeros that mean "derived". Idempotent. head_dim stays 0 where hidden is not
  // a multiple of heads: problems_of() reports it.
  void finish(int64_t seq_len);

  int64_t q_size() const { return heads * head_dim; }      // columns of q
  int64_t kv_size() const { return kv_heads * head_dim; }  // columns of k, of v where it is no latent one
  bool latent() const { return kv_rank > 0; }
  int64_t rope_dim() const { return latent() ? rope_head_dim : head_dim; }  // of a head, that turn
  int64_t value_dim() const { return latent() ? v_head_dim : head_dim; }
  int64_t o_size() const { return heads * value_dim(); }  // columns of what attention gives
  bool biased_qkv() const { return attn_bias || qkv_bias; }
  bool moe() const { return experts > 0; }
  bool expert_block(int64_t i) const {
    return moe() && i >= dense_layers && (expert_step <= 1 || (i + 1) % expert_step == 0);
  }
  int64_t expert_blocks() const {  // how many
    if (!moe()) return 0;
    const int64_t step = expert_step < 1 ? 1 : expert_step,
                  dense = dense_layers < layers ? dense_layers : layers;
    return layers / step - dense / step;
  }

  template <class V>
  void visit(V& v) {
    static constexpr std::string_view kNorms[] = {"rms", "layer"};
    static constexpr std::string_view kActivations[] = {"swiglu", "gelu_tanh", "gelu"};
    static constexpr std::string_view kPositions[] = {"rope", "learned"};
    static constexpr std::string_view kScores[] = {"softmax", "sigmoid"};
    static constexpr std::string_view kWorths[] = {"largest", "pair"};
    v("from", from, "folder", "Hugging Face folder (config.json + safetensors); empty = from scratch");
    v("arch", arch, "", "architecture; sets the defaults of the keys below", one_of(kArchs));
    v("vocab", vocab, "tokens", "vocabulary", between(1, kMaxVocab));
    v("layers", layers, "", "transformer blocks", between(1, kMaxLayers));
    v("hidden", hidden, "", "width of the residual stream", between(1, kMaxWidth));
    v("heads", heads, "", "query heads", between(1, kMaxWidth));
    v("kv_heads", kv_heads, "", "key and value heads, a divisor of heads; not given or 0: heads",
      between(0, kMaxWidth));
    v("head_dim", head_dim, "", "width of a head; not given or 0: hidden / heads", between(0, kMaxWidth));
    v("ffn", ffn, "",
      "width of the feed-forward; not given or 0: 8/3 hidden up to a multiple of 256 (gpt2: 4 hidden)",
      between(0, 4 * kMaxWidth));
    v("experts", experts, "", "experts of each block's feed-forward; 0 = one dense feed-forward",
      between(0, 65536));
    v("experts_per_token", experts_per_token, "", "experts that a token visits; not given or 0: 2",
      between(0, 65536));
    v("moe_ffn", moe_ffn, "", "width of an expert; not given or 0: ffn", between(0, 4 * kMaxWidth));
    v("shared_ffn", shared_ffn, "",
      "width of an expert that every token visits; 0 = none (with shared_gate: experts_per_token * moe_ffn)",
      between(0, 4 * kMaxWidth));
    v("dense_layers", dense_layers, "", "with experts: the first so many blocks have a dense feed-forward",
      between(0, kMaxLayers));
    v("expert_step", expert_step, "",
      "with experts: beyond dense_layers every n-th block, counted from 1, has them", between(1, kMaxLayers));
    v("expert_groups", expert_groups, "", "experts lie in so many equal groups", between(1, 65536));
    v("top_groups", top_groups, "", "of which so many supply a token's experts", between(1, 65536));
    v("kv_rank", kv_rank, "",
      "latent attention: width of what keys and values are made from; 0 = keys and values of their own",
      between(0, kMaxWidth));
    v("q_rank", q_rank, "",
      "latent attention: width of what queries are made from; 0 = straight from the input",
      between(0, kMaxWidth));
    v("nope_head_dim", nope_head_dim, "", "latent attention: width of a head of q and k without positions",
      between(0, kMaxWidth));
    v("rope_head_dim", rope_head_dim, "",
      "latent attention: width of a head of q and k with rotary positions; all heads share such a key",
      between(0, kMaxWidth));
    v("v_head_dim", v_head_dim, "", "latent attention: width of a head of v; not given or 0: nope_head_dim",
      between(0, kMaxWidth));
    v("max_positions", max_positions, "tokens", "longest context; not given or 0: data.seq_len",
      between(0, 2147483647));
    v("norm", norm, "", "normalisation: RMSNorm or LayerNorm", one_of(kNorms));
    v("activation", activation, "", "feed-forward: gated silu, gelu by tanh, gelu by erf",
      one_of(kActivations));
    v("positions", positions, "", "rotary or learned positions", one_of(kPositions));
    v("attn_bias", attn_bias, "", "biases on q, k, v and o");
    v("qkv_bias", qkv_bias, "", "biases on q, k and v, none on o");
    v("qk_norm", qk_norm, "", "RMSNorm of each head of q and k, before positions are applied");
    v("mlp_bias", mlp_bias, "", "biases in the feed-forward");
    v("norm_topk", norm_topk, "", "the weights of a token's experts are divided by their sum");
    v("shared_gate", shared_gate, "", "the shared expert's answer is multiplied by the sigmoid of a gate");
    v("router_bias", router_bias, "",
      "a bias of each expert, which is no parameter, is added to its score in choosing, not in weighing");
    v("router_score", router_score, "", "an expert's score of its logit", one_of(kScores));
    v("group_worth", group_worth, "", "a group is worth its largest score, or the sum of its two largest",
      one_of(kWorths));
    v("routed_scale", routed_scale, "", "the weights of a token's experts are multiplied by it",
      Rule{.low = 0, .high = 1e6, .low_open = true});
    v("rope_interleaved", rope_interleaved, "",
      "latent attention: rotary positions turn pairs of neighbours");
    v("tied", tied, "", "the output head is the token embedding");
    v("norm_eps", norm_eps, "", "added inside the root of the normalisations",
      Rule{.low = 0, .high = 1, .low_open = true});
    v("rope_theta", rope_theta, "", "base of the rotary frequencies",
      Rule{.low = 0, .high = 1e30, .low_open = true});
    v.section("rope_scaling", rope_scaling, "rotary frequencies for longer contexts");
    v("init_std", init_std, "",
      "standard deviation of fresh weights; auto = 0.02 sqrt(256 / hidden), also embed_std and head_std by "
      "hidden where they are 0 (docs/optim.md)",
      Rule{.low = 0, .high = 10, .automatic = true});
    v("embed_std", embed_std, "", "standard deviation of fresh embeddings that are not tied; 0 = init_std",
      between(0, 10));
    v("head_std", head_std, "", "standard deviation of a fresh head that is not tied; 0 = init_std",
      between(0, 10));
    static constexpr Rule kRate{.low = 0, .high = 1, .high_open = true};
    v("embd_pdrop", embd_pdrop, "", "training: share of the embeddings' elements dropped", kRate);
    v("attn_pdrop", attn_pdrop, "", "training: share of attention's probabilities dropped", kRate);
    v("resid_pdrop", resid_pdrop, "",
      "training: share dropped of what attention and feed-forward add to the residual stream", kRate);
  }
};

}  // namespace trireme
