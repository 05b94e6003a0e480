// Models as config.json: what is exported reads back as the same, and runs that begin from a folder.
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/json.h"
#include "hf_configs.h"
#include "spec/hf_config.h"
#include "spec/run_spec.h"
#include "testing.h"

namespace trireme {
namespace {
using testing::error_of;
using testing::kGpt2;
using testing::kLlama2;
using testing::kLlama32;
using testing::kMixtral;
using testing::kQwen15Moe;
using testing::kQwen25;
using testing::kQwen3;
using testing::kQwen3Moe;
using Json = nlohmann::json;

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
  Json out = Json::parse(hf_config_json(parse_hf_config(j.dump(), "config.json"),
                                        {.bos = ids.bos, .eos = ids.eos, .pad = ids.pad}));
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
