#include "checkpoint/peft.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "checkpoint/safetensors_writer.h"
#include "spec/hf_config.h"
#include "support.h"

namespace trireme {
namespace {

const fs::path kPeftGoldens = test::source_dir() / "tests/golden";

ModelSpec peft_model(const char* name) {
  return model_from_hf(kPeftGoldens / name / "config.json");
}

std::vector<float> peft_factor(const PeftFolder& folder, const PeftPlace& p, char which) {
  const Shape shape = which == 'a' ? Shape{folder.config().rank, p.in} : Shape{p.out, folder.config().rank};
  std::vector<float> values(size_t(shape.numel()));
  folder.read(p.ours, which, whole(shape).box, {0, shape.numel()}, Tensor(values.data(), shape, DType::f32));
  return values;
}

// An adapter that PEFT wrote, exported: equal bytes of tensors, equal settings.
TEST(Peft, AnAdapterComesBackAsItWas) {
  TempFolder tmp;
  const ModelSpec model = peft_model("llama2");
  const PeftFolder theirs(kPeftGoldens / "lora", model);
  EXPECT_EQ(theirs.config().rank, 3);
  EXPECT_EQ(theirs.config().alpha, 7.5);
  EXPECT_EQ(theirs.matrices().size(), 10u);
  const std::vector<PeftPlace> places = peft_places(model);
  export_peft(tmp / "out", model, theirs.config(), "base", theirs.matrices(),
              [&](const std::string& matrix, char which) {
                for (const PeftPlace& p : places)
                  if (p.ours == matrix) return peft_factor(theirs, p, which);
                return std::vector<float>();
              });
  EXPECT_EQ(read_text(tmp / "out/adapter_model.safetensors"),
            read_text(kPeftGoldens / "lora/adapter_model.safetensors"));
  const auto config = nlohmann::json::parse(read_text(tmp / "out/adapter_config.json"));
  EXPECT_EQ(config["target_modules"],
            (std::vector<std::string>{"down_proj", "gate_proj", "o_proj", "q_proj", "v_proj"}));
  EXPECT_EQ(config["r"], 3);
  EXPECT_EQ(config["lora_alpha"], 7.5);
  EXPECT_EQ(config["peft_type"], "LORA");
  // Elements 2 to 8 of the second row on.
  std::vector<float> some(6);
  const PeftPlace& q = places[0];
  ASSERT_EQ(q.ours, "blocks.0.attn.q");
  theirs.read(q.ours, 'a', {{1, 4}, {2, 10}}, {2, 8}, Tensor(some.data(), {6}, DType::f32));
  const std::vector<float> all = peft_factor(theirs, q, 'a');
  for (size_t i = 0; i < some.size(); i++) EXPECT_EQ(some[i], all[48 + 4 + 2 + i]);
}

// A module that only some layers adapt is named whole; GPT-2's q is a part of one.
TEST(Peft, TargetsNameTheModules) {
  TempFolder tmp;
  const auto ones = [](int64_t n) { return std::vector<float>(size_t(n), 1.0f); };
  const ModelSpec llama = peft_model("llama2");
  export_peft(tmp / "some", llama, {.rank = 1, .alpha = 1}, "", {"blocks.1.attn.q"},
              [&](const std::string&, char) { return ones(48); });
  const auto config = nlohmann::json::parse(read_text(tmp / "some/adapter_config.json"));
  EXPECT_EQ(config["target_modules"], std::vector<std::string>{"model.layers.1.self_attn.q_proj"});
  EXPECT_TRUE(config["base_model_name_or_path"].is_null());
  const ModelSpec gpt2 = peft_model("gpt2");
  expect_refused(
      [&] {
        export_peft(tmp / "gpt2", gpt2, {.rank = 1, .alpha = 1}, "", {"blocks.0.attn.q"},
                    [&](const std::string&, char) { return ones(1); });
      },
      {"blocks.0.attn.q: is a part of a module"});
  fs::create_directories(tmp / "mine");
  write_text_atomic(tmp / "mine/notes.txt", "");
  expect_refused(
      [&] {
        export_peft(tmp / "mine", llama, {.rank = 1, .alpha = 1}, "", {"blocks.1.attn.q"},
                    [&](const std::string&, char) { return ones(48); });
      },
      {"notes.txt"});
}

TEST(Peft, WhatIsNoPlainAdapterIsRefused) {
  TempFolder tmp;
  const ModelSpec model = peft_model("llama2");
  const fs::path folder = tmp / "adapter";
  fs::create_directories(folder);
  const nlohmann::json good = nlohmann::json::parse(read_text(kPeftGoldens / "lora/adapter_config.json"));
  const std::string weights = read_text(kPeftGoldens / "lora/adapter_model.safetensors");
  const auto refused = [&](const char* key, const nlohmann::json& value, const char* words) {
    nlohmann::json config = good;
    config[key] = value;
    write_text_atomic(folder / "adapter_config.json", config.dump());
    write_text_atomic(folder / "adapter_model.safetensors", weights);
    expect_refused([&] { PeftFolder(folder, model); }, {words});
  };
  refused("use_dora", true, "use_dora = true");
  refused("use_rslora", true, "use_rslora = true");
  refused("rank_pattern", {{"q_proj", 4}}, "rank_pattern");
  refused("modules_to_save", {"lm_head"}, "modules_to_save");
  refused("bias", "all", "bias = \"all\"");
  refused("peft_type", "IA3", "peft_type");
  refused("r", 4, "has shape [3, 48]; expected [4, 48]");
  refused("r", 0, "r = 0");
  refused("lora_alpha", "x", "lora_alpha");
  write_text_atomic(folder / "adapter_config.json", good.dump());
  const auto with = [&](const std::string& from, const std::string& to, const char* words) {
    std::string text = weights;
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
    write_text_atomic(folder / "adapter_model.safetensors", text);
    expect_refused([&] { PeftFolder(folder, model); }, {words});
  };
  with("layers.1.self_attn.q_proj.lora_B", "layers.1.self_attn.q_proj.lora_C", "lacks '");
  with("layers.1.self_attn.q_proj", "layers.7.self_attn.q_proj", "does not belong to a matrix");
}

}  // namespace
}  // namespace trireme
