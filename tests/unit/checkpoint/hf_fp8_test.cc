// Folders of 8-bit weights (DeepSeek-V3's) against torch, and what lies in them refused.
#include <gtest/gtest.h>

#include <bit>

#include "base/json.h"
#include "base/rng.h"
#include "checkpoint/fp8.h"
#include "checkpoint/hf.h"
#include "spec/hf_config.h"
#include "support.h"

namespace trireme {
namespace {

const fs::path kFp8Golden = test::source_dir() / "tests/unit/checkpoint/golden";

TEST(Fp8, EveryCodeIsTorchs) {
  const SafetensorsFile expected(kFp8Golden / "fp8_expected.safetensors");
  const auto bytes = expected.bytes(*expected.find("codes"));
  for (int code = 0; code < 256; code++) {
    float want;
    std::memcpy(&want, bytes.data() + 4 * code, 4);
    const float got = from_fp8(Fp8Format::e4m3, uint8_t(code));
    if (std::isnan(want))
      EXPECT_TRUE(std::isnan(got)) << code;
    else
      EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want)) << code;
  }
}

// Blocks of 128 x 128 and others, cut off at the edges, from any element to any other: the product of both,
// exact in double, rounded once.
TEST(Fp8, BlocksAreCutOffAtTheEdges) {
  for (const auto& [out, in, rows, cols] :
       {std::array<int64_t, 4>{300, 260, 128, 128}, {128, 128, 128, 128}, {131, 1, 128, 128}, {5, 7, 2, 3}}) {
    const int64_t across = (in + cols - 1) / cols, down = (out + rows - 1) / rows;
    std::vector<uint8_t> codes(static_cast<size_t>(out * in));
    std::vector<float> scales(size_t(across * down));
    for (size_t i = 0; i < codes.size(); i++) {
      codes[i] = uint8_t(below(rng_key(1, 0, "codes"), i, 256));
      if ((codes[i] & 0x7f) == 0x7f) codes[i] = 0x33;
    }
    for (size_t i = 0; i < scales.size(); i++) scales[i] = float(std::exp(normal(2, i)));
    const Fp8Matrix m{.codes = reinterpret_cast<const std::byte*>(codes.data()),
                      .scales = reinterpret_cast<const std::byte*>(scales.data()),
                      .in = in,
                      .rows = rows,
                      .cols = cols};
    const int64_t n = out * in;
    for (const auto& [first, last] : {std::pair{int64_t(0), n}, {n / 3, n - 1}, {n - 1, n}}) {
      std::vector<float> got(static_cast<size_t>(last - first));
      dequantise("w", m, first, got);
      for (int64_t i = first; i < last; i++) {
        const double scale = double(scales[size_t(i / in / rows * across + i % in / cols)]);
        ASSERT_EQ(got[size_t(i - first)], float(double(from_fp8(Fp8Format::e4m3, codes[size_t(i)])) * scale))
            << i;
      }
    }
  }
}

// A scale of one byte is a power of two: 127 is 1, 0 the least, 255 no number.
TEST(Fp8, ScalesMayBeExponents) {
  const uint8_t codes[4] = {0x38, 0x40, 0xb8, 0x3c};  // 1, 2, -1, 1.5
  const uint8_t scales[4] = {127, 130, 0, 255};
  const Fp8Matrix m{.codes = reinterpret_cast<const std::byte*>(codes),
                    .scales = reinterpret_cast<const std::byte*>(scales),
                    .scales_are_e8m0 = true,
                    .in = 4,
                    .rows = 1,
                    .cols = 1};
  std::vector<float> got(3);
  dequantise("w", m, 0, got);
  EXPECT_EQ(got, (std::vector<float>{1, 16, -0x1p-127f}));
  expect_refused([&] { dequantise("w", m, 3, std::span(got).first(1)); }, {"w: the scale of block 3 is nan"});
}

std::vector<float> fp8_as_f32(const HfFolder& f, const HfPlace& p) {
  std::vector<float> out(size_t(p.shape.numel()));
  f.read(p.ours, Tensor(out.data(), p.shape, DType::f32));
  return out;
}

// Every 8-bit matrix as bf16 to torch's bit, whole and in parts; all else as it is stored.
TEST(HfFp8, WeightsAreTorchs) {
  const ModelSpec spec = model_from_hf(kFp8Golden / "fp8/config.json");
  const HfFolder folder(kFp8Golden / "fp8", spec);
  const SafetensorsFile expected(kFp8Golden / "fp8_expected.safetensors");
  EXPECT_EQ(folder.dtype(), DType::bf16);
  EXPECT_EQ(folder.ignored(), (std::vector<std::string>{"model.layers.2.eh_proj.weight",
                                                        "model.layers.2.eh_proj.weight_scale_inv"}));
  int matrices = 0;
  for (const HfPlace& p : hf_places(spec)) {
    const SafetensorsEntry* e = expected.find("model." + p.theirs);
    if (!e) continue;
    matrices++;
    EXPECT_EQ(folder.dtype(p.ours), DType::bf16);
    std::vector<bf16> got(size_t(p.shape.numel()));
    folder.read(p.ours, Tensor(got.data(), p.shape, DType::bf16));
    const std::byte* want = expected.bytes(*e).data() + p.begin * p.shape[1] * 2;
    EXPECT_EQ(std::memcmp(got.data(), want, got.size() * 2), 0) << p.ours;
    // A box of the middle, and of it a range.
    Slice box;
    box.offset = {p.shape[0] / 3, 1}, box.extent = {p.shape[0] / 2, p.shape[1] - 2};
    const Range range{1, box.extent.numel()};
    std::vector<float> part(size_t(range.size())), whole = fp8_as_f32(folder, p);
    folder.read(p.ours, box, range, Tensor(part.data(), {range.size()}, DType::f32));
    for (int64_t i = range.begin; i < range.end; i++) {
      const int64_t row = box.offset[0] + i / box.extent[1], col = 1 + i % box.extent[1];
      ASSERT_EQ(part[size_t(i - 1)], whole[size_t(row * p.shape[1] + col)]);
    }
  }
  EXPECT_GT(matrices, 30);
}

// What is written is plain: the same weights, rounded to the export's type, and no word of scales.
TEST(HfFp8, AnExportIsPlain) {
  TempFolder tmp;
  const ModelSpec spec = model_from_hf(kFp8Golden / "fp8/config.json");
  const HfFolder folder(kFp8Golden / "fp8", spec);
  export_hf(tmp / "out", spec, [&](std::string_view name, const Tensor& dst) { folder.read(name, dst); },
            {.dtype = DType::f32});
  EXPECT_EQ(read_text(tmp / "out/config.json").find("quantization_config"), std::string::npos);
  EXPECT_TRUE(model_from_hf(tmp / "out/config.json") == spec);
  const HfFolder plain(tmp / "out", spec);
  EXPECT_TRUE(plain.ignored().empty());
  for (const HfPlace& p : hf_places(spec)) EXPECT_EQ(fp8_as_f32(plain, p), fp8_as_f32(folder, p)) << p.ours;
}

// A file of tensors of any stored type, by hand.
struct StoredFp8 {
  std::string type;
  std::vector<int64_t> shape;
  std::string bytes;
};
using StoredTensors = std::map<std::string, StoredFp8>;

StoredTensors stored_tensors_of(const fs::path& path) {
  const SafetensorsFile f(path);
  StoredTensors out;
  for (const SafetensorsEntry& e : f.header().entries) {
    const auto b = f.bytes(e);
    StoredFp8& s = out[e.name];
    s.type = e.stored_type, s.bytes.assign(reinterpret_cast<const char*>(b.data()), b.size());
    for (int d = 0; d < e.shape.rank; d++) s.shape.push_back(e.shape[d]);
  }
  return out;
}

void write_fp8_folder(const fs::path& path, const StoredTensors& tensors) {
  nlohmann::json header;
  std::string data;
  for (const auto& [name, s] : tensors) {
    header[name] = {
        {"dtype", s.type}, {"shape", s.shape}, {"data_offsets", {data.size(), data.size() + s.bytes.size()}}};
    data += s.bytes;
  }
  const std::string text = header.dump();
  const uint64_t n = text.size();
  write_text_atomic(path, std::string(reinterpret_cast<const char*>(&n), 8) + text + data);
}

TEST(HfFp8, WhatDoesNotFitIsRefusedByName) {
  const std::string weight = "model.layers.0.mlp.gate_proj.weight", scales = weight + "_scale_inv";
  const std::string config = read_text(kFp8Golden / "fp8/config.json");
  const StoredTensors good = stored_tensors_of(kFp8Golden / "fp8/model.safetensors");
  TempFolder tmp;
  auto refuse = [&](const std::function<void(StoredTensors&, nlohmann::json&)>& change,
                    std::vector<std::string> parts) {
    StoredTensors t = good;
    nlohmann::json c = nlohmann::json::parse(config);
    change(t, c);
    write_text_atomic(tmp / "config.json", c.dump());
    write_fp8_folder(tmp / "model.safetensors", t);
    expect_refused(
        [&] {
          const ModelSpec spec = model_from_hf(tmp / "config.json");
          const HfFolder folder(tmp.path(), spec);
          for (const HfPlace& p : hf_places(spec)) fp8_as_f32(folder, p);
        },
        parts);
  };
  refuse([&](StoredTensors& t, auto&) { t.erase(scales); }, {weight, "F8_E4M3", "no tensor", scales});
  refuse(
      [&](StoredTensors& t, auto&) {
        t.at(scales).shape = {t.at(scales).shape[1], t.at(scales).shape[0]};
      },
      {scales, "has shape [", "blocks of 8 x 12"});
  refuse([&](StoredTensors& t, auto&) { t.at(scales).type = "I32"; },
         {scales, "is I32", "expected F32, BF16"});
  refuse([&](StoredTensors& t, auto&) { t.at(weight).type = "F8_E5M2"; }, {weight, "is F8_E5M2"});
  refuse(
      [&](StoredTensors& t, auto&) {
        const float inf = INFINITY;
        std::memcpy(t.at(scales).bytes.data() + 4, &inf, 4);
      },
      {"blocks.0.mlp.gate.weight", "the scale of block 1 is inf"});
  refuse([&](StoredTensors& t, auto&) { t["model.layers.3.x"] = t.at(scales); }, {"model.layers.3.x"});
  refuse([&](auto&, nlohmann::json& c) { c["num_nextn_predict_layers"] = 0; }, {"model.layers.2.eh_proj"});
  refuse([&](auto&, nlohmann::json& c) { c["quantization_config"] = nullptr; },
         {"is F8_E4M3", "no quantization_config"});
  auto refuse_key = [&](const char* key, const nlohmann::json& value, std::vector<std::string> parts) {
    parts.push_back("config.json: quantization_config: ");
    refuse([&](auto&, nlohmann::json& c) { c["quantization_config"][key] = value; }, parts);
  };
  refuse_key("quant_method", "awq", {"quant_method is \"awq\"; only fp8 is supported"});
  refuse_key("fmt", "e5m2", {"fmt is \"e5m2\""});
  refuse_key("weight_block_size", {0, 128}, {"weight_block_size is", "from 1 to 1048576"});
  refuse_key("weight_block_size", {128}, {"weight_block_size"});
  refuse_key("weight_block_size", {128, int64_t(1) << 40}, {"weight_block_size"});
  refuse_key("weight_block_size", nullptr, {"weight_block_size"});
  refuse_key("bits", 4, {"\"bits\" is not supported"});
  // Other lies: each loads or is refused.
  std::mt19937 random(5);
  for (int i = 0; i < 60; i++) {
    std::string file = read_text(kFp8Golden / "fp8/model.safetensors");
    for (int k = 0; k < 3; k++) file[random() % 6000] = char(random());
    write_text_atomic(tmp / "config.json", config);
    write_text_atomic(tmp / "model.safetensors", file);
    loads_or_refused([&] {
      const ModelSpec spec = model_from_hf(tmp / "config.json");
      const HfFolder folder(tmp.path(), spec);
      for (const HfPlace& p : hf_places(spec)) fp8_as_f32(folder, p);
    });
  }
}

}  // namespace
}  // namespace trireme
