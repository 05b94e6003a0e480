// What sources' recipes say of memory, as rows are read: Megatron-Bridge's, NeMo's, JAX's; what they leave
// unsaid is ranged over.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "cost/step_memory.h"
#include "published/score_fit.h"
#include "spec/parameters.h"

namespace trireme {
namespace {

using RecipeJson = nlohmann::json;

MeasuredRow recipe_row(const char* source, const char* model, const char* gpu, const char* precision,
                       int64_t gpus, const char* id = "r") {
  const RecipeJson row = {{"id", id},
                          {"source", source},
                          {"kind", "measured"},
                          {"precision", precision},
                          {"model", {{"name", model}, {"seq", 4096}}},
                          {"cluster", {{"gpu", gpu}, {"count", gpus}}},
                          {"layout",
                           {{"tp", 1},
                            {"pp", 1},
                            {"ep", 1},
                            {"fsdp", 64},
                            {"micro_batch", 1},
                            {"interleave", 1},
                            {"global_batch", 2 * gpus}}},
                          {"result", {{"step_time_s", 20.0}}}};
  return read_rows(RecipeJson::array({row}).dump(), "rows.json", shipped_catalog()).at(0);
}

TEST(ScoreRecipes, MegatronBridge) {
  const char* bridge = "NVIDIA Megatron-Bridge, a test";
  MeasuredRow r = recipe_row(bridge, "LLAMA3_70B", "GB300", "FP8", 64);
  ASSERT_EQ(r.cases.size(), 1u) << r.skipped;
  const StepCase c = r.cases[0];
  EXPECT_TRUE(c.keeping.tensors && c.keeping.weights8 && !c.keeping.transposed);
  EXPECT_EQ(c.keeping.offloaded, 20);
  EXPECT_EQ(c.keeping.loss, 0);
  EXPECT_EQ(c.grad_stored, 2);
  EXPECT_EQ(c.grad_bytes, 4);  // on the wire as before
  EXPECT_EQ(recipe_row(bridge, "LLAMA3_70B", "GB200", "FP8", 64).cases.at(0).keeping.offloaded, 40);
  EXPECT_EQ(recipe_row(bridge, "LLAMA3_70B", "GB200", "MXFP8", 64).cases.at(0).keeping.offloaded, 0);
  EXPECT_TRUE(recipe_row(bridge, "LLAMA3_70B", "H100", "FP8", 64).cases.at(0).keeping.transposed);
  const Keeping deepseek = recipe_row(bridge, "DeepSeekV3", "GB200", "MXFP8", 256).cases.at(0).keeping;
  EXPECT_EQ(deepseek.optimizer, 8);
  EXPECT_TRUE(deepseek.redo.up_projections && !deepseek.redo.norms && !deepseek.attention8);
  const auto of_release = [&](const char* id) {
    return recipe_row(bridge, "DeepSeekV3", "GB300", "MXFP8", 256, id).cases.at(0).keeping;
  };
  EXPECT_TRUE(of_release("bridge_26.08_x").attention8);
  EXPECT_FALSE(of_release("bridge_26.08_x").redo.up_projections);
  EXPECT_FALSE(of_release("bridge_26.02_x").attention8);
}

TEST(ScoreRecipes, WhatIsUnsaidIsRangedOver) {
  const FitValues v = [] {
    FitValues all{};
    all.fill(1);
    return all;
  }();
  const char* azure = "DeepSpeed on Azure 2022, a test";
  const MeasuredRow r = recipe_row(azure, "LLAMA3_70B", "A100-SXM-80GB", "fp16", 64);
  ASSERT_EQ(r.cases.size(), 4u) << r.skipped;  // optimizer, blocks' inputs, each here or in the host's memory
  EXPECT_EQ(r.missing, std::vector<std::string>{"keeping"});
  const RowForecast bytes = memory_of(r, v), seconds = forecast_of(r, v);
  EXPECT_LT(bytes.low * 1.2, bytes.high);
  EXPECT_EQ(seconds.low, seconds.high);
}

TEST(ScoreRecipes, JaxKeepsWhatItsPolicyNames) {
  const MeasuredRow r =
      recipe_row("NVIDIA dgxc, a test", "maxtext llama 70B", "H100", "fp8", 64, "dgxc_v25.02");
  ASSERT_EQ(r.cases.size(), 1u) << r.skipped;
  EXPECT_EQ(r.cases[0].saved, SavedProducts::qkv);
}

// A device with a cluster file and no curves: its rows are read for what they lack.
TEST(ScoreRecipes, DevicesOfWhichNothingIsMeasured) {
  EXPECT_EQ(
      recipe_row("MaxText, a test", "LLAMA3_70B", "TPUv5p", "bf16", 64).skipped,
      "cluster.gpu \"TPUv5p\" is configs/cluster/tpu-v5p.toml: no curve of its products and attention is "
      "measured");
  EXPECT_EQ(recipe_row("MaxText, a test", "no such", "TPUv5e", "bf16", 64).skipped,
            "model \"no such\" has no shape in the catalog");
}

TEST(ScoreRecipes, UnknownModulesAreNamed) {
  const RecipeJson rule = {{"source", "s"},    {"family", "f"},
                           {"software", "w"},  {"site", "x"},
                           {"flops", "model"}, {"keeping", {{"redo", {"mlp", "attention"}}}}};
  const RecipeJson catalog = {{"shapes", RecipeJson::array()},
                              {"devices", RecipeJson::array()},
                              {"sites", RecipeJson::array()},
                              {"sources", RecipeJson::array({rule})}};
  try {
    parse_catalog(catalog.dump(), "c.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "c.json: redo \"attention\"; right are layernorm, mla_up_proj, mlp, moe_act");
  }
}

// Names as the Hub and nvidia-smi spell them; parameters as the models' cards count them, in billions.
TEST(ScoreCatalog, SixtyModelsAndTwentyFiveDevices) {
  const Catalog& c = shipped_catalog();
  EXPECT_GE(c.shapes.size(), 60u);
  EXPECT_GE(c.devices.size() + c.unmeasured.size(), 25u);
  const std::pair<const char*, double> cards[] = {
      {"meta-llama/Llama-3.2-1B", 1.24},  {"Qwen/Qwen2.5-72B", 72.7},
      {"Qwen/Qwen3-32B", 32.8},           {"mistralai/Mistral-Nemo-Base-2407", 12.2},
      {"google/gemma-7b", 8.54},          {"bigscience/bloom", 176.2},
      {"allenai/OLMoE-1B-7B-0924", 6.92}, {"HuggingFaceTB/SmolLM2-135M", 0.1345},
      {"EleutherAI/pythia-12b", 11.85},   {"openai/gpt-oss-20b", 20.9}};
  for (const auto& [name, billions] : cards) {
    const KnownShape* k = c.shape_named(name);
    ASSERT_NE(k, nullptr) << name;
    ModelSpec m = k->model;
    m.finish(2048);
    double all = double(m.hidden * m.vocab) * (m.tied ? 1 : 2);
    all += double(m.layers) * double(block_parameters(m, 1, m.moe()));
    EXPECT_NEAR(all / 1e9 / billions, 1, 0.02) << name;
  }
  const std::pair<const char*, const char*> devices[] = {{"NVIDIA GeForce RTX 4090", "RTX 4090"},
                                                         {"NVIDIA L40S", "L40S"},
                                                         {"NVIDIA L4", "L4"},
                                                         {"NVIDIA H20", "H20"},
                                                         {"NVIDIA H200", "H200"},
                                                         {"NVIDIA H100 80GB HBM3", "H100"},
                                                         {"NVIDIA A100-SXM4-80GB", "A100-80GB"},
                                                         {"NVIDIA GH200 480GB", "GH200"},
                                                         {"AMD Instinct MI355X", "MI355X"},
                                                         {"TPU v4", "TPUv4"},
                                                         {"tpu-v6e", "TPUv6e"}};
  for (const auto& [asked, name] : devices) {
    const KnownDevice* d = c.device_called(asked);
    ASSERT_NE(d, nullptr) << asked;
    EXPECT_EQ(d->name, name);
  }
}

}  // namespace
}  // namespace trireme
