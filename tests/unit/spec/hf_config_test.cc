#include "spec/hf_config.h"

#include "base/json.h"
#include "base/rng.h"
#include "hf_configs.h"
#include "spec/run_spec.h"
#include "testing.h"

namespace trireme {
namespace {
using testing::error_of;
using testing::kDeepSeekV2Lite;
using testing::kDeepSeekV3;
using testing::kGpt2;
using testing::kLlama2;
using testing::kLlama32;
using testing::kMixtral;
using testing::kQwen15Moe;
using testing::kQwen25;
using testing::kQwen3;
using testing::kQwen3Moe;
using testing::lines_of;
using Json = nlohmann::json;

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

// Attributes that transformers keeps and does not compute with, in any model, whatever their value.
TEST(HfConfig, KeysThatChangeNothingAreRead) {
  for (const char* key :
       {"_model_name_or_path", "_name_or_path", "_attn_implementation_internal", "unk_token_id",
        "image_token_id", "eos_token_ids", "scale_fmt", "model_max_length", "transformers_version",
        "kernels_version", "classifier_dropout", "max_new_tokens", "cache_implementation", "loss_type",
        "renormalize_logits", "unsloth_version", "base_model_tp_plan", "use_cache"})
    for (const char* base : {kGpt2, kLlama2, kMixtral, kDeepSeekV3})
      for (const Json& value : {Json(3), Json("x"), Json(true), Json::array({1}), Json::object()})
        EXPECT_EQ(wrong_with(base, key, value), "") << key;
  EXPECT_EQ(wrong_with(kLlama2, "some_new_trick", nullptr), "");  // null is not given
  EXPECT_EQ(wrong_with(kLlama2, "activation", "swiglu"), "");
  EXPECT_HAS(wrong_with(kLlama2, "activation", "relu"), "activation: \"relu\" is not supported");
}

TEST(HfConfig, YarnMayNameItsProvenance) {
  const Json yarn = {
      {"type", "yarn"}, {"factor", 32}, {"original_max_position_embeddings", 4096}, {"finetuned", true}};
  EXPECT_EQ(wrong_with(kLlama2, "rope_scaling", yarn), "");
}

TEST(HfConfig, CodeOfTheFolderIsNotRun) {
  Json j = Json::parse(kLlama2);
  j["auto_map"] = {{"AutoModelForCausalLM", "modeling_x.XForCausalLM"}};
  std::vector<std::string> notes;
  parse_hf_config(j.dump(), "config.json", &notes);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_HAS(notes[0], "config.json: auto_map: code of the folder is not run");
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

}  // namespace
}  // namespace trireme
