#include "spec/hf_config.h"

#include <unistd.h>

#include "base/json.h"
#include "base/rng.h"
#include "spec/run_spec.h"
#include "testing.h"

namespace trireme {
namespace {
using testing::error_of;
using testing::lines_of;
using Json = nlohmann::json;

// The published config.json of gpt2 (124M), every key of it.
constexpr const char* kGpt2 = R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
  "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
  "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
  "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1, "summary_proj_to_labels": true,
  "summary_type": "cls_index", "summary_use_proj": true,
  "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257})";

// Of Llama 2 7B, Llama 3.2 1B.
constexpr const char* kLlama2 = R"({
  "_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"], "bos_token_id": 1,
  "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": null, "tie_word_embeddings": false, "torch_dtype": "float16",
  "transformers_version": "4.31.0.dev0", "use_cache": true, "vocab_size": 32000})";
constexpr const char* kLlama32 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
  "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
  "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1,
  "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256})";

ModelSpec model_of(const Json& j, std::vector<std::string>* notes = nullptr) {
  return parse_hf_config(j.dump(), "config.json", notes);
}
// The error of a config with one key changed.
std::string wrong_with(const char* base, const char* key, Json value) {
  Json j = Json::parse(base);
  j[key] = std::move(value);
  return error_of([&] { model_of(j); });
}

TEST(HfConfig, Gpt2) {
  std::vector<std::string> notes;
  ModelSpec m = parse_hf_config(kGpt2, "config.json", &notes);
  ModelSpec want = ModelSpec::of("gpt2");
  want.vocab = 50257, want.layers = 12, want.hidden = 768, want.heads = want.kv_heads = 12;
  want.head_dim = 64, want.ffn = 3072, want.max_positions = 1024;
  want.embd_pdrop = want.attn_pdrop = want.resid_pdrop = 0.1;
  EXPECT_TRUE(m == want);
  EXPECT_TRUE(notes.empty());

  Json j = Json::parse(kGpt2);
  j["n_inner"] = 1000, j["activation_function"] = "gelu", j["tie_word_embeddings"] = false;
  m = model_of(j);
  EXPECT_EQ(m.ffn, 1000);
  EXPECT_EQ(m.activation, "gelu");
  EXPECT_FALSE(m.tied);
  j["activation_function"] = "gelu_pytorch_tanh", j["n_inner"] = nullptr;
  EXPECT_EQ(model_of(j).activation, "gelu_tanh");
  EXPECT_EQ(model_of(j).ffn, 3072);
}

TEST(HfConfig, Llama2) {
  ModelSpec m = parse_hf_config(kLlama2, "config.json");
  ModelSpec want;
  want.vocab = 32000, want.layers = 32, want.hidden = 4096, want.heads = want.kv_heads = 32;
  want.head_dim = 128, want.ffn = 11008, want.max_positions = 4096;
  EXPECT_TRUE(m == want);
  Json j = Json::parse(kLlama2);
  j.erase("rms_norm_eps"), j.erase("num_key_value_heads");
  EXPECT_EQ(model_of(j).norm_eps, 1e-6);  // transformers' default, not ours
  EXPECT_EQ(model_of(j).kv_heads, 32);
  j["attention_bias"] = true, j["mlp_bias"] = true, j["head_dim"] = 80;
  EXPECT_TRUE(model_of(j).attn_bias && model_of(j).mlp_bias);
  EXPECT_EQ(model_of(j).head_dim, 80);
}

TEST(HfConfig, Llama3) {
  ModelSpec m = parse_hf_config(kLlama32, "config.json");
  EXPECT_EQ(m.kv_heads, 8);
  EXPECT_TRUE(m.tied);
  EXPECT_EQ(m.rope_theta, 500000);
  EXPECT_TRUE(m.rope_scaling == (RopeScaling{"llama3", 32, 1, 4, 8192}));
}

// Of Qwen2.5 0.5B, Qwen3 0.6B.
constexpr const char* kQwen25 = R"({
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
  "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
  "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
  "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.40.1", "use_cache": true, "use_mrope": false, "use_sliding_window": false,
  "vocab_size": 151936})";
constexpr const char* kQwen3 = R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
  "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
  "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true,
  "use_sliding_window": false, "vocab_size": 151936})";

// Mixtral 8x7B, Qwen1.5-MoE-A2.7B, Qwen3-30B-A3B.
constexpr const char* kMixtral = R"({
  "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
  "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
  "output_router_logits": false, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
  "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.36.0.dev0", "use_cache": true, "vocab_size": 32000})";
constexpr const char* kQwen15Moe = R"({
  "architectures": ["Qwen2MoeForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
  "intermediate_size": 5632, "max_position_embeddings": 8192, "max_window_layers": 21, "model_type": "qwen2_moe",
  "num_attention_heads": 16, "num_hidden_layers": 24, "num_key_value_heads": 16, "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.39.0.dev0", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936,
  "decoder_sparse_step": 1, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
  "num_experts_per_tok": 4, "num_experts": 60, "norm_topk_prob": false, "output_router_logits": false,
  "router_aux_loss_coef": 0.001})";
constexpr const char* kQwen3Moe = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
  "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144,
  "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
  "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
  "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
  "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";

TEST(HfConfig, ModelsOfExperts) {
  ModelSpec m = model_of(Json::parse(kMixtral)), want = ModelSpec::of("mixtral");
  want.vocab = 32000, want.layers = 32, want.hidden = 4096, want.heads = 32, want.kv_heads = 8;
  want.ffn = 14336, want.max_positions = 32768;
  want.finish(32768);
  EXPECT_EQ(m, want);
  EXPECT_TRUE(m.experts == 8 && m.experts_per_token == 2 && m.moe_ffn == 14336 && m.norm_topk);
  m = model_of(Json::parse(kQwen15Moe));
  EXPECT_TRUE(m.experts == 60 && m.experts_per_token == 4 && m.moe_ffn == 1408 && m.shared_ffn == 5632);
  EXPECT_TRUE(m.shared_gate && !m.norm_topk && m.qkv_bias && !m.qk_norm);
  m = model_of(Json::parse(kQwen3Moe));
  EXPECT_TRUE(m.experts == 128 && m.experts_per_token == 8 && m.moe_ffn == 768 && m.shared_ffn == 0);
  EXPECT_TRUE(!m.shared_gate && m.norm_topk && m.qk_norm && m.head_dim == 128);
}
TEST(HfConfig, WhatIsNotThereOfExpertsIsRefused) {
  EXPECT_HAS(wrong_with(kQwen3Moe, "mlp_only_layers", Json::array({1})), "mlp_only_layers: only [] ");
  EXPECT_HAS(wrong_with(kQwen3Moe, "decoder_sparse_step", 100), "leaves no layer of experts");
  EXPECT_HAS(wrong_with(kMixtral, "router_jitter_noise", 0.1), "router_jitter_noise: only 0 ");
  EXPECT_HAS(wrong_with(kMixtral, "sliding_window", 4096), "sliding_window: 4096 is not supported");
  EXPECT_HAS(wrong_with(kMixtral, "num_experts_per_tok", 9), "num_experts_per_tok: 9 is more than the 8");
  EXPECT_HAS(wrong_with(kQwen15Moe, "use_sliding_window", true), "use_sliding_window: true ");
}

// DeepSeek-V2-Lite as published, and V3 but for its fp8.
constexpr const char* kDeepSeekV2Lite = R"({
  "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "aux_loss_alpha": 0.001, "bos_token_id": 100000, "eos_token_id": 100001, "first_k_dense_replace": 1,
  "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 10944,
  "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v2",
  "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64,
  "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 16, "num_experts_per_tok": 6,
  "num_hidden_layers": 27, "num_key_value_heads": 16, "pretraining_tp": 1, "q_lora_rank": null,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": true, "tie_word_embeddings": false,
  "topk_group": 1, "topk_method": "greedy", "torch_dtype": "bfloat16", "transformers_version": "4.33.1",
  "use_cache": true, "v_head_dim": 128, "vocab_size": 102400})";
constexpr const char* kDeepSeekV3 = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
  "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
  "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048,
  "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
  "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
  "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
  "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
  "transformers_version": "4.33.1", "use_cache": true, "v_head_dim": 128, "vocab_size": 129280})";

TEST(HfConfig, DeepSeek) {
  ModelSpec m = model_of(Json::parse(kDeepSeekV2Lite)), want = ModelSpec::of("deepseek_v2");
  want.vocab = 102400, want.layers = 27, want.hidden = 2048, want.heads = 16, want.q_rank = 0;
  want.ffn = 10944, want.moe_ffn = 1408, want.shared_ffn = 2816, want.max_positions = 163840;
  want.rope_scaling = {
      .type = "yarn", .factor = 40, .original_max_positions = 4096, .mscale = 0.707, .mscale_all_dim = 0.707};
  want.finish(163840);
  EXPECT_EQ(m, want);
  EXPECT_TRUE(m.dense_layers == 1 && m.expert_groups == 1 && !m.norm_topk && !m.router_bias);
  m = model_of(Json::parse(kDeepSeekV3)), want = ModelSpec::of("deepseek_v3");
  want.vocab = 129280, want.layers = 61, want.hidden = 7168, want.heads = 128;
  want.ffn = 18432, want.moe_ffn = want.shared_ffn = 2048, want.max_positions = 163840;
  want.rope_scaling = {
      .type = "yarn", .factor = 40, .original_max_positions = 4096, .mscale = 1, .mscale_all_dim = 1};
  want.finish(163840);
  EXPECT_EQ(m, want);
  EXPECT_TRUE(m.router_bias && m.router_score == "sigmoid" && m.group_worth == "pair" &&
              m.routed_scale == 2.5);
  Json j = Json::parse(kDeepSeekV2Lite);
  j["topk_method"] = "group_limited_greedy", j["n_group"] = 8, j["topk_group"] = 3;
  m = model_of(j);
  EXPECT_TRUE(m.expert_groups == 8 && m.top_groups == 3 && m.group_worth == "largest");
}

TEST(HfConfig, WhatIsNotThereOfDeepSeekIsRefused) {
  EXPECT_HAS(wrong_with(kDeepSeekV3, "topk_method", "greedy"), "topk_method: \"greedy\" is not supported");
  EXPECT_HAS(wrong_with(kDeepSeekV3, "scoring_func", "softmax"),
             "scoring_func: \"softmax\" is not supported");
  EXPECT_HAS(wrong_with(kDeepSeekV3, "moe_layer_freq", 2), "moe_layer_freq: only 1 ");
  EXPECT_HAS(wrong_with(kDeepSeekV3, "first_k_dense_replace", 61), "leaves no layer of experts");
  EXPECT_HAS(wrong_with(kDeepSeekV3, "n_group", 7), "n_group: 7 does not divide n_routed_experts = 256");
  EXPECT_HAS(wrong_with(kDeepSeekV3, "topk_group", 9), "topk_group: 9 of 8 groups");
  EXPECT_HAS(wrong_with(kDeepSeekV3, "num_key_value_heads", 64), "latent keys are of every head");
  EXPECT_HAS(wrong_with(kDeepSeekV3, "qk_rope_head_dim", 63), "63 is odd");
  EXPECT_HAS(wrong_with(kDeepSeekV2Lite, "norm_topk_prob", true), "norm_topk_prob: true ");
  EXPECT_HAS(wrong_with(kDeepSeekV2Lite, "attention_bias", true), "without q_lora_rank");
  EXPECT_HAS(wrong_with(kDeepSeekV2Lite, "mlp_bias", true), "mlp_bias: true ");
}

TEST(HfConfig, Qwen2) {
  ModelSpec want = ModelSpec::of("qwen2");
  EXPECT_TRUE(want.qkv_bias && !want.attn_bias && !want.qk_norm);
  want.vocab = 151936, want.layers = 24, want.hidden = 896, want.heads = 14, want.kv_heads = 2;
  want.head_dim = 64, want.ffn = 4864, want.max_positions = 32768, want.tied = true;
  EXPECT_EQ(model_of(Json::parse(kQwen25)), want);
  Json j = Json::parse(kQwen25);
  for (const char* key : {"max_position_embeddings", "rms_norm_eps", "rope_theta", "tie_word_embeddings",
                          "sliding_window", "use_sliding_window", "max_window_layers", "use_mrope"})
    j.erase(key);
  want.tied = false, want.rope_theta = 10000;  // transformers' defaults, not ours
  EXPECT_EQ(model_of(j), want);
  j["num_key_value_heads"] = nullptr;
  EXPECT_EQ(model_of(j).kv_heads, 14);
  j.erase("num_key_value_heads");
  EXPECT_HAS(error_of([&] { model_of(j); }),
             "num_key_value_heads: 32 does not divide num_attention_heads = 14");
}

TEST(HfConfig, Qwen3) {
  ModelSpec want = ModelSpec::of("qwen3");
  EXPECT_TRUE(!want.qkv_bias && !want.attn_bias && want.qk_norm);
  want.vocab = 151936, want.layers = 28, want.hidden = 1024, want.heads = 16, want.kv_heads = 8;
  want.head_dim = 128, want.ffn = 3072, want.max_positions = 40960, want.tied = true;
  EXPECT_EQ(model_of(Json::parse(kQwen3)), want);
  Json j = Json::parse(kQwen3);
  j.erase("head_dim");  // 128 too, not hidden / heads
  EXPECT_EQ(model_of(j), want);
  j["attention_bias"] = true;
  EXPECT_TRUE(model_of(j).attn_bias);
}

TEST(HfConfig, WindowsInUseAreRefused) {
  for (const char* base : {kQwen25, kQwen3}) {
    EXPECT_HAS(wrong_with(base, "layer_types", {"full_attention", "sliding_attention"}),
               "layer_types: only \"full_attention\"");
    Json j = Json::parse(base);
    j["use_sliding_window"] = true, j["sliding_window"] = 100, j["max_window_layers"] = 3;
    EXPECT_HAS(error_of([&] { model_of(j); }),
               "use_sliding_window: true is not supported: layers from 3 on would attend to 100 tokens");
    j.erase("max_window_layers");  // 28
    if (base == kQwen25) {
      EXPECT_NO_THROW(model_of(j));
    }
    j["max_window_layers"] = 28;  // no layer is above it
    EXPECT_NO_THROW(model_of(j));
    j["max_window_layers"] = 0, j["sliding_window"] = nullptr;
    EXPECT_NO_THROW(model_of(j));
    j["sliding_window"] = 100, j["layer_types"] = Json::array({"full_attention"});
    EXPECT_NO_THROW(model_of(j));
    j["max_window_layers"] = "three";
    EXPECT_HAS(error_of([&] { model_of(j); }), "max_window_layers: \"three\" is not a whole number");
    EXPECT_HAS(wrong_with(base, "sliding_window", -1), "sliding_window: -1 is not a whole number");
    EXPECT_HAS(wrong_with(base, "use_mrope", true), "use_mrope: true is not supported");
    j["rope_scaling"] = Json{{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
    j["max_window_layers"] = 0;
    EXPECT_EQ(model_of(j).rope_scaling,
              (RopeScaling{.type = "yarn", .factor = 4, .original_max_positions = 32768}));
  }
}

TEST(HfConfig, RatesOfDropout) {
  Json j = Json::parse(kGpt2);
  j["attn_pdrop"] = 0, j["embd_pdrop"] = 0.25, j["resid_pdrop"] = nullptr;  // null: transformers' 0.1
  ModelSpec m = model_of(j);
  EXPECT_EQ(m.attn_pdrop, 0);
  EXPECT_EQ(m.embd_pdrop, 0.25);
  EXPECT_EQ(m.resid_pdrop, 0.1);
  for (const char* base : {kLlama32, kQwen25, kQwen3}) {
    j = Json::parse(base);
    EXPECT_EQ(model_of(j).attn_pdrop, 0);
    j["attention_dropout"] = 0.2;
    m = model_of(j);
    EXPECT_EQ(m.attn_pdrop, 0.2);
    EXPECT_EQ(m.embd_pdrop, 0);
    EXPECT_EQ(m.resid_pdrop, 0);
    std::vector<std::string> notes;
    j["hidden_dropout"] = 0.3;
    model_of(j, &notes);
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_HAS(notes[0], "hidden_dropout: 0.3 is not applied: a " + m.arch + " has no such dropout");
    EXPECT_HAS(wrong_with(base, "attention_dropout", 1), "attention_dropout: 1 drops everything");
    EXPECT_HAS(wrong_with(base, "attention_dropout", 1.5),
               "attention_dropout: 1.5 is not a number from 0 to 1");
    EXPECT_HAS(wrong_with(base, "attention_dropout", "x"), "attention_dropout: \"x\" is not a number");
    m.embd_pdrop = 0.1, m.resid_pdrop = 0.05;
    EXPECT_TRUE(parse_hf_config(hf_config_json(m), "out.json") == m);
  }
}

TEST(HfConfig, EveryFormOfRope) {
  auto rope = [](const char* key, Json value, bool theta_outside = false) {
    Json j = Json::parse(kLlama2);
    j[key] = std::move(value);
    if (theta_outside) j["rope_theta"] = 1e6;
    return model_of(j);
  };
  EXPECT_EQ(rope("rope_scaling", {{"type", "linear"}, {"factor", 2.5}}).rope_scaling.type, "linear");
  EXPECT_EQ(rope("rope_scaling", {{"type", "linear"}, {"factor", 2.5}}).rope_scaling.factor, 2.5);
  EXPECT_EQ(rope("rope_scaling", {{"rope_type", "default"}}, true).rope_scaling.type, "none");
  EXPECT_EQ(rope("rope_scaling", {{"rope_type", "default"}}, true).rope_theta, 1e6);
  // transformers 5
  ModelSpec m = rope("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 123456.0}});
  EXPECT_EQ(m.rope_theta, 123456);
  EXPECT_EQ(m.rope_scaling.type, "none");
  m = rope("rope_parameters", {{"rope_type", "llama3"},
                               {"rope_theta", 5e5},
                               {"factor", 8},
                               {"low_freq_factor", 1},
                               {"high_freq_factor", 4},
                               {"original_max_position_embeddings", 8192}});
  EXPECT_TRUE(m.rope_scaling == (RopeScaling{"llama3", 8, 1, 4, 8192}));
  EXPECT_EQ(m.rope_theta, 5e5);
}

TEST(HfConfig, RopeThatIsNotHereIsRefused) {
  auto wrong = [](const char* key, Json value) { return wrong_with(kLlama2, key, std::move(value)); };
  EXPECT_EQ(wrong("rope_scaling", {{"type", "longrope"}, {"factor", 4}}),
            "config.json: rope_scaling.rope_type: \"longrope\" is not supported; default, linear, llama3 and "
            "yarn are");
  Json yarn = {{"type", "yarn"}, {"factor", 4}, {"beta_slow", 5}, {"beta_fast", 5}};
  EXPECT_HAS(wrong("rope_scaling", yarn), "original_max_position_embeddings: missing");
  yarn["original_max_position_embeddings"] = 64;
  EXPECT_HAS(wrong("rope_scaling", yarn), "beta_slow: 5 must be below beta_fast = 5");
  yarn["beta_fast"] = 6, yarn["truncate"] = false;
  EXPECT_HAS(wrong("rope_scaling", yarn), "truncate: false is not supported");
  EXPECT_HAS(wrong("rope_scaling", {{"type", "dynamic"}, {"factor", 4}}), "\"dynamic\" is not supported");
  EXPECT_HAS(wrong("rope_scaling", {{"type", "linear"}}), "rope_scaling.factor: missing");
  EXPECT_HAS(wrong("rope_scaling", {{"type", "linear"}, {"factor", 0.5}}), "0.5 is not a number from 1 to");
  EXPECT_HAS(wrong("rope_scaling", {{"type", "linear"}, {"factor", 2}, {"beta_fast", 32}}),
             "rope_scaling.beta_fast: 32 is not supported");
  EXPECT_HAS(wrong("rope_scaling", {{"type", "linear"}, {"rope_type", "llama3"}, {"factor", 2}}),
             "rope_scaling.type: contradicts rope_type");
  EXPECT_HAS(wrong("rope_scaling", 3), "rope_scaling: 3 is not an object");
  EXPECT_EQ(lines_of(wrong("rope_scaling", {{"rope_type", "llama3"}})).size(), 4u);  // each missing number
  EXPECT_HAS(wrong("rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}),
             "rope_parameters.partial_rotary_factor: only 1");
  EXPECT_HAS(wrong("partial_rotary_factor", 0.5), "partial_rotary_factor: 0.5 is not supported; only 1 is");
  Json j = Json::parse(kLlama32);
  j["rope_parameters"] = Json::object();
  EXPECT_HAS(error_of([&] { model_of(j); }), "rope_parameters: given beside rope_scaling");
  j.erase("rope_scaling");
  j["rope_parameters"] = {{"rope_theta", 1e4}};
  EXPECT_HAS(error_of([&] { model_of(j); }), "rope_theta: 10000 contradicts rope_theta = 500000 outside");
}

TEST(HfConfig, WhatChangesTheMathsIsRefusedByName) {
  struct Case {
    const char *base, *key;
    Json value;
  };
  for (const Case& c :
       std::initializer_list<Case>{{kGpt2, "scale_attn_by_inverse_layer_idx", true},
                                   {kGpt2, "reorder_and_upcast_attn", true},
                                   {kGpt2, "add_cross_attention", true},
                                   {kGpt2, "scale_attn_weights", false},
                                   {kGpt2, "activation_function", "relu"},
                                   {kGpt2, "pruned_heads", {{"0", {1}}}},
                                   {kGpt2, "architectures", {"GPT2DoubleHeadsModel"}},
                                   {kLlama2, "pretraining_tp", 2},
                                   {kLlama2, "hidden_act", "gelu"},
                                   {kLlama2, "sliding_window", 4096},
                                   {kLlama2, "quantization_config", {{"bits", 4}}},
                                   {kLlama2, "auto_map", {{"AutoModel", "x.y"}}},
                                   {kLlama2, "layer_types", {"sliding_attention"}},
                                   {kLlama2, "architectures", {"LlamaForSequenceClassification"}},
                                   {kLlama2, "embedding_multiplier", 12.0},
                                   {kLlama2, "num_local_experts", 8},
                                   {kLlama2, "some_new_trick", false}}) {
    std::string err = wrong_with(c.base, c.key, c.value);
    EXPECT_EQ(err.find(std::string("config.json: ") + c.key + ": "), 0u) << c.key << ": " << err;
    EXPECT_EQ(lines_of(err).size(), 1u) << err;
  }
  // Off is off.
  for (const Case& c : std::initializer_list<Case>{{kGpt2, "scale_attn_by_inverse_layer_idx", false},
                                                   {kGpt2, "pruned_heads", Json::object()},
                                                   {kLlama2, "sliding_window", nullptr},
                                                   {kLlama2, "quantization_config", nullptr},
                                                   {kLlama2, "partial_rotary_factor", 1.0},
                                                   {kLlama2, "layer_types", {"full_attention"}}})
    EXPECT_EQ(wrong_with(c.base, c.key, c.value), "") << c.key;
}

TEST(HfConfig, OtherModelsAreRefusedByName) {
  EXPECT_EQ(
      wrong_with(kLlama2, "model_type", "mistral"),
      "config.json: model_type: \"mistral\" is not supported by this version; gpt2, llama, qwen2, qwen3, "
      "mixtral, qwen2_moe, qwen3_moe, deepseek_v2, deepseek_v3 are");
  EXPECT_HAS(wrong_with(kLlama2, "model_type", nullptr), "config.json: model_type: missing");
  EXPECT_HAS(wrong_with(kLlama2, "model_type", "xyzzy"), "\"xyzzy\" is not known");
}

TEST(HfConfig, HostileFiles) {
  auto wrong = [](const std::string& text) {
    return error_of([&] { parse_hf_config(text, "config.json"); });
  };
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("\xff\xfe"), std::string("nul"),
        std::string("{\"a\": NaN}"), std::string("{\"a\": 1e999999}"), std::string("{\"\0", 3),
        std::string("{\"x\n\": 1}"), std::string(200000, '[')}) {
    std::string err = wrong(text);
    EXPECT_EQ(err.find("config.json: "), 0u) << err;
    EXPECT_EQ(lines_of(err).size(), 1u) << err;
    EXPECT_LT(err.size(), 300u);
  }
  std::string deep(200000, '[');
  EXPECT_HAS(wrong("{\"model_type\": \"llama\", \"x\": " + deep + std::string(200000, ']') + "}"),
             "x: a list is not");
  EXPECT_HAS(wrong(std::string(5 << 20, ' ')), "too many for a config.json");
  EXPECT_HAS(wrong("[]"), "a list where an object with model_type was expected");
  EXPECT_HAS(wrong("{\"model_type\": [1]}"), "model_type: a list is not a string");

  for (Json v : {Json(-1), Json(0), Json(1.5), Json("768"), Json(true), Json::array(),
                 Json(18446744073709551615u), Json(1e300), Json(2147483648)}) {
    for (const char* key : {"vocab_size", "num_hidden_layers", "intermediate_size"}) {
      std::string err = wrong_with(kLlama2, key, v);
      EXPECT_EQ(err.find(std::string("config.json: ") + key + ": "), 0u) << err;
      EXPECT_EQ(lines_of(err).size(), 1u) << err;
    }
  }
  EXPECT_HAS(wrong_with(kLlama2, "rms_norm_eps", 0), "rms_norm_eps: 0 is not a number from");
  EXPECT_HAS(wrong_with(kLlama2, "num_attention_heads", 33), "33 does not divide hidden_size = 4096");
  EXPECT_HAS(wrong_with(kLlama2, "num_key_value_heads", 3), "3 does not divide num_attention_heads = 32");
  EXPECT_HAS(wrong_with(kLlama2, "head_dim", 63), "63 is odd");
  EXPECT_HAS(wrong_with(kLlama2, "tie_word_embeddings", 1), "1 is neither true nor false");
  EXPECT_HAS(wrong_with(kGpt2, "n_head", 7), "7 does not divide n_embd = 768");
  EXPECT_HAS(wrong_with(kGpt2, "bad\nkey\x01", 1), "config.json: \"bad\\x0akey\\x01\": ");
  std::string all = wrong("{\"model_type\": \"llama\", \"zzz\": 1}");
  EXPECT_EQ(lines_of(all).size(), 6u) << all;  // five missing sizes, one unknown key
  EXPECT_HAS(error_of([] { model_from_hf("/nonexistent/config.json"); }), "/nonexistent/config.json");
}

// Any single byte of a config changed, or the file cut anywhere: a spec or one clear error, nothing else.
TEST(HfConfig, MutatedFiles) {
  uint64_t key = rng_key(11, 0, "mutated config");
  for (uint64_t i = 0; i < 4000; i++) {
    std::string text = i % 2 ? kGpt2 : kLlama32;
    if (i % 5 == 0) text.resize(below(key, 3 * i, text.size()));
    if (!text.empty()) text[below(key, 3 * i + 1, text.size())] = char(below(key, 3 * i + 2, 256));
    std::string err = error_of([&] { parse_hf_config(text, "config.json"); });
    for (const std::string& line : lines_of(err)) EXPECT_EQ(line.find("config.json: "), 0u) << line;
  }
}

TEST(HfExport, ReadsBackAsTheSameModel) {
  for (const char* text : {kGpt2, kLlama2, kLlama32}) {
    ModelSpec m = parse_hf_config(text, "config.json");
    EXPECT_TRUE(parse_hf_config(hf_config_json(m), "out.json") == m) << hf_config_json(m);
  }
  ModelSpec m = parse_hf_config(kLlama2, "config.json");
  m.rope_scaling = {"linear", 3};
  m.head_dim = 80, m.kv_heads = 4, m.attn_bias = m.mlp_bias = m.tied = true;
  EXPECT_TRUE(parse_hf_config(hf_config_json(m), "out.json") == m);
  m.rope_scaling = {"llama3", 7, 1.5, 5, 1234};
  m.norm_eps = 3e-7, m.rope_theta = 12345.5, m.init_std = 0.03, m.max_positions = 99;
  EXPECT_TRUE(parse_hf_config(hf_config_json(m), "out.json") == m);
  for (const char* base : {kQwen25, kQwen3}) {
    m = parse_hf_config(base, "config.json");
    EXPECT_TRUE(parse_hf_config(hf_config_json(m), "out.json") == m);
    m.tied = false, m.rope_theta = 5e5, m.rope_scaling = {"linear", 3}, m.norm_eps = 1e-5;
    if (m.arch == "qwen3") m.head_dim = 30, m.heads = 9, m.kv_heads = 3, m.attn_bias = true;
    EXPECT_TRUE(parse_hf_config(hf_config_json(m), "out.json") == m);
  }
  for (const char* base : {kMixtral, kQwen15Moe, kQwen3Moe}) {
    m = parse_hf_config(base, "config.json");
    EXPECT_TRUE(parse_hf_config(hf_config_json(m), "out.json") == m) << hf_config_json(m);
    m.experts = 7, m.experts_per_token = 3, m.norm_topk = m.arch == "mixtral" || !m.norm_topk;
    if (m.arch != "mixtral") m.moe_ffn = 33;
    if (m.arch == "qwen2_moe") m.shared_ffn = 44, m.qkv_bias = false;
    EXPECT_TRUE(parse_hf_config(hf_config_json(m), "out.json") == m) << hf_config_json(m);
  }
  m = parse_hf_config(kGpt2, "config.json");
  m.activation = "gelu", m.ffn = 1000, m.tied = false, m.norm_eps = 2e-6, m.init_std = 0.01,
  m.max_positions = 7;
  EXPECT_TRUE(parse_hf_config(hf_config_json(m), "out.json") == m);
}

TEST(HfExport, Fields) {
  Json j =
      Json::parse(hf_config_json(parse_hf_config(kLlama32, "c"), {.dtype = "float32", .bos = 5, .eos = {6}}));
  EXPECT_EQ(j["architectures"], Json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(j["model_type"], "llama");
  EXPECT_EQ(j["torch_dtype"], "float32");
  EXPECT_EQ(j["bos_token_id"], 5);
  EXPECT_EQ(j["eos_token_id"], 6);
  EXPECT_FALSE(j.contains("pad_token_id"));
  EXPECT_EQ(j["rope_scaling"], Json::parse(kLlama32)["rope_scaling"]);
  j = Json::parse(hf_config_json(parse_hf_config(kGpt2, "c")));
  EXPECT_EQ(j["attn_pdrop"], 0.1);
  EXPECT_EQ(j["activation_function"], "gelu_new");
  EXPECT_TRUE(j["bos_token_id"].is_null());
}

TEST(HfExport, TokenIdsGoThrough) {
  Json j = Json::parse(kQwen3);
  HfIds ids = hf_token_ids(j.dump(), "config.json");
  EXPECT_EQ(ids.bos, 151643);
  EXPECT_EQ(ids.eos, (std::vector<int64_t>{151645}));
  EXPECT_FALSE(ids.pad);
  j["eos_token_id"] = {151645, 151643}, j["pad_token_id"] = 7, j["bos_token_id"] = nullptr;
  ids = hf_token_ids(j.dump(), "config.json");
  EXPECT_FALSE(ids.bos);
  Json out = Json::parse(hf_config_json(model_of(j), {.bos = ids.bos, .eos = ids.eos, .pad = ids.pad}));
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) EXPECT_EQ(out[key], j[key]) << key;
  for (const char* bad : {R"({"eos_token_id": "x"})", R"({"eos_token_id": [1, 2.5]})",
                          R"({"bos_token_id": {}})", R"({"pad_token_id": 1e300})", "[]", "{"})
    EXPECT_HAS(error_of([&] { hf_token_ids(bad, "config.json"); }), "config.json: ") << bad;
}

TEST(HfExport, WhatTheFormatCannotSayIsRefused) {
  auto wrong = [](const char* base, auto change) {
    ModelSpec m = parse_hf_config(base, "c");
    change(m);
    return error_of([&] { hf_config_json(m); });
  };
  EXPECT_HAS(wrong(kLlama2, [](ModelSpec& m) { m.norm = "layer"; }), "model.norm: layer cannot be exported");
  EXPECT_HAS(wrong(kLlama2, [](ModelSpec& m) { m.activation = "gelu"; }), "model.activation: ");
  EXPECT_HAS(wrong(kLlama2, [](ModelSpec& m) { m.positions = "learned"; }), "model.positions: ");
  EXPECT_HAS(wrong(kLlama2, [](ModelSpec& m) { m.heads = 5; }), "model.heads: ");
  EXPECT_HAS(wrong(kGpt2, [](ModelSpec& m) { m.kv_heads = 4; }), "model.kv_heads: ");
  EXPECT_HAS(wrong(kGpt2, [](ModelSpec& m) { m.head_dim = 32; }), "model.head_dim: ");
  EXPECT_HAS(wrong(kGpt2, [](ModelSpec& m) { m.attn_bias = false; }), "model.attn_bias: ");
  EXPECT_HAS(wrong(kGpt2, [](ModelSpec& m) { m.positions = "rope"; }), "model.positions: ");
  for (const char* base : {kGpt2, kLlama2, kQwen25, kQwen3}) {
    EXPECT_HAS(wrong(base, [](ModelSpec& m) { m.qkv_bias = !m.qkv_bias; }), "model.qkv_bias: ");
    EXPECT_HAS(wrong(base, [](ModelSpec& m) { m.qk_norm = !m.qk_norm; }), "model.qk_norm: ");
  }
  EXPECT_HAS(wrong(kQwen25, [](ModelSpec& m) { m.attn_bias = true; }), "model.attn_bias: ");
  EXPECT_HAS(wrong(kQwen25, [](ModelSpec& m) { m.mlp_bias = true; }), "model.mlp_bias: ");
  EXPECT_HAS(wrong(kQwen3, [](ModelSpec& m) { m.mlp_bias = true; }), "model.mlp_bias: ");
}

// A run that starts from a folder.
class FromFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("trireme_from_" + std::to_string(::getpid()));
    make_folders(folder_);
    write_text_atomic(folder_ / "config.json", kLlama32);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string from() const { return "[model]\nfrom = \"" + folder_.string() + "\"\n"; }
  fs::path folder_;
};

TEST_F(FromFolder, TakesTheModelFromItsConfig) {
  RunSpec run = parse_run(from(), "run.toml");
  ModelSpec want = parse_hf_config(kLlama32, "c");
  want.from = folder_.string();
  EXPECT_TRUE(run.model == want);
  EXPECT_TRUE(parse_run(save_run(run), "saved.toml") == run);
  EXPECT_NE(hash(run), hash([&] {
              RunSpec scratch = run;
              scratch.model.from.clear();
              return scratch;
            }()));
}

TEST_F(FromFolder, KeysBesideMustAgree) {
  EXPECT_TRUE(parse_run(from() + "layers = 16\nhead_dim = 64\nffn = 0\n", "run.toml").model.layers == 16);
  EXPECT_EQ(
      error_of([&] { parse_run(from() + "layers = 4\n[model.rope_scaling]\nfactor = 8\n", "run.toml"); }),
      "run.toml:3: model.layers: 4 contradicts 16 in model.from; remove the line\n"
      "run.toml:5: model.rope_scaling.factor: 8.0 contradicts 32.0 in model.from; remove the line");
}

// How much is dropped is the run's to say, whatever the folder says.
TEST_F(FromFolder, RatesOfDropoutMayDiffer) {
  EXPECT_EQ(parse_run(from() + "attn_pdrop = 0.1\nresid_pdrop = 0.2\n", "run.toml").model.attn_pdrop, 0.1);
  write_text_atomic(folder_ / "config.json", kGpt2);
  EXPECT_EQ(parse_run(from(), "run.toml").model.resid_pdrop, 0.1);
  EXPECT_EQ(parse_run(from() + "resid_pdrop = 0\n", "run.toml").model.resid_pdrop, 0);
  EXPECT_HAS(error_of([&] { parse_run(from() + "resid_pdrop = 1\n", "run.toml"); }), "model.resid_pdrop: 1");
}

TEST_F(FromFolder, ABadConfigIsReportedAtItsKey) {
  write_text_atomic(folder_ / "config.json", R"({"model_type": "mistral"})");
  std::string err = error_of([&] { parse_run(from() + "[batch]\nmicro = 0\n", "run.toml"); });
  EXPECT_HAS(err, "run.toml:2: model.from: ");
  EXPECT_HAS(err, "config.json: model_type: \"mistral\" is not supported");
  EXPECT_HAS(err, "run.toml:4: batch.micro: 0 is out of range");
}

TEST_F(FromFolder, ASavedRunOutlivesTheFolder) {
  std::string saved = save_run(parse_run(from(), "run.toml"));
  fs::remove_all(folder_);
  EXPECT_HAS(error_of([&] { parse_run(saved, "saved.toml"); }), "model.from: ");
  EXPECT_EQ(parse_run(saved, "saved.toml", {}, {.read_from = false}).model.kv_heads, 8);
}

}  // namespace
}  // namespace trireme
