#include "checkpoint/hf.h"

#include <gtest/gtest.h>

#include <bit>

#include "checkpoint/convert.h"
#include "checkpoint/part_folder.h"
#include "checkpoint/safetensors_writer.h"
#include "spec/hf_config.h"
#include "support.h"

namespace trireme {
namespace {

const fs::path kModels = test::source_dir() / "tests/golden";
const std::vector<std::string> kCases = {
    "gpt2",        "gpt2_untied", "llama2",          "llama3",    "llama_linear",
    "llama_bias",  "qwen2",       "qwen2_tied",      "qwen3",     "qwen3_tied",
    "mixtral",     "qwen2_moe",   "qwen2_moe_dense", "qwen3_moe", "deepseek_v2",
    "deepseek_v3", "llama_yarn",  "deepseek_yarn"};

ModelSpec spec_of(const fs::path& folder) {
  return model_from_hf(folder / "config.json");
}

// A file held in memory, to be changed and written elsewhere.
struct Weights {
  std::map<std::string, std::pair<SafetensorsItem, std::string>> tensors;

  explicit Weights(const fs::path& folder) {
    for (const std::string& name : names_in(folder)) {
      if (!name.starts_with("model") || !name.ends_with(".safetensors")) continue;
      SafetensorsFile f(folder / name);
      for (const SafetensorsEntry& e : f.header().entries) {
        auto b = f.bytes(e);
        tensors[e.name] = {{e.name, *e.dtype, e.shape}, {reinterpret_cast<const char*>(b.data()), b.size()}};
      }
    }
  }
  void rename(const std::string& from, const std::string& to) {
    auto node = tensors.extract(from);
    ASSERT_FALSE(node.empty()) << from;
    node.key() = to, node.mapped().first.name = to;
    tensors.insert(std::move(node));
  }
  void add(const std::string& name, DType t, const Shape& s) {
    tensors[name] = {{name, t, s}, std::string(size_t(s.numel() * size_of(t)), '\1')};
  }
  void convert(DType to) {
    for (auto& [name, t] : tensors) {
      if (name.ends_with("e_score_correction_bias"))
        continue;  // f32 in every folder, as transformers keeps it
      std::string out(size_t(t.first.shape.numel() * size_of(to)), '\0');
      convert_elements(name, to, out.data(), t.first.dtype, t.second.data(), t.first.shape.numel());
      t.second = out, t.first.dtype = to;
    }
  }
  void write(const fs::path& file) const {
    std::vector<SafetensorsItem> items;
    for (const auto& [name, t] : tensors) items.push_back(t.first);
    SafetensorsWriter w(file, items, {{"format", "pt"}});
    for (const SafetensorsItem& i : w.items())
      w.write(tensors.at(i.name).second.data(), tensors.at(i.name).second.size());
    w.commit();
  }
};

std::vector<float> read_f32(const HfFolder& f, const HfPlace& p) {
  std::vector<float> out(size_t(p.shape.numel()));
  f.read(p.ours, Tensor(out.data(), p.shape, DType::f32));
  return out;
}

TensorGetter getter_of(const HfFolder& f) {
  return [&f](std::string_view name, const Tensor& dst) { f.read(name, dst); };
}

TEST(Hf, EveryElementIsWhereTheTableSays) {
  for (const std::string& c : kCases) {
    SCOPED_TRACE(c);
    ModelSpec spec = spec_of(kModels / c);
    HfFolder folder(kModels / c, spec);
    EXPECT_EQ(folder.dtype(), DType::f32);
    EXPECT_TRUE(folder.ignored().empty());
    Weights raw(kModels / c);
    size_t elements = 0, stored = 0;
    for (const auto& [name, t] : raw.tensors) stored += size_t(t.first.shape.numel());
    for (const HfPlace& p : hf_places(spec)) {
      std::string name = p.theirs == kHfHead ? p.theirs : std::string(hf_prefix(spec)) + p.theirs;
      const std::string& theirs = raw.tensors.at(name).second;
      std::vector<float> ours = read_f32(folder, p);
      const int64_t in = p.shape.rank == 2 ? p.shape[1] : 1, out_total = p.their_shape[p.transposed ? 1 : 0];
      for (int64_t o = 0; o < p.shape[0]; o++)
        for (int64_t i = 0; i < in; i++) {
          float want;
          std::memcpy(
              &want,
              theirs.data() + 4 * (p.transposed ? i * out_total + p.begin + o : (p.begin + o) * in + i), 4);
          ASSERT_EQ(ours[size_t(o * in + i)], want) << p.ours << " " << o << " " << i;
        }
      elements += ours.size();
    }
    EXPECT_EQ(elements, stored);  // nothing is left over, nothing is read twice
  }
}

TEST(Hf, NamesOfGpt2) {
  std::map<std::string, HfPlace> by_name;
  for (const HfPlace& p : hf_places(spec_of(kModels / "gpt2"))) by_name[p.ours] = p;
  const HfPlace& k = by_name.at("blocks.1.attn.k.weight");
  EXPECT_EQ(k.theirs, "h.1.attn.c_attn.weight");
  EXPECT_EQ(k.shape, (Shape{32, 32}));
  EXPECT_EQ(k.their_shape, (Shape{32, 96}));
  EXPECT_TRUE(k.transposed);
  EXPECT_EQ(k.begin, 32);
  EXPECT_EQ(by_name.at("blocks.0.mlp.down.weight").their_shape, (Shape{128, 32}));
  EXPECT_EQ(by_name.at("blocks.0.mlp.down.weight").shape, (Shape{32, 128}));
  EXPECT_EQ(by_name.at("norm.bias").theirs, "ln_f.bias");
  EXPECT_FALSE(by_name.contains("head.weight"));
  EXPECT_FALSE(by_name.contains("blocks.0.mlp.gate.weight"));
}

TEST(Hf, PartsOfParametersAreRead) {
  std::mt19937_64 rng(41);
  for (const char* c : {"gpt2", "llama_bias"}) {
    ModelSpec spec = spec_of(kModels / c);
    HfFolder folder(kModels / c, spec);
    for (const HfPlace& p : hf_places(spec)) {
      std::vector<float> all = read_f32(folder, p);
      const int64_t rows = p.shape[0], cols = p.shape.rank == 2 ? p.shape[1] : 1;
      for (int round = 0; round < 4; round++) {
        Slice box = whole(p.shape).box;
        box.offset.dim[0] = int64_t(rng() % uint64_t(rows));
        box.extent.dim[0] = 1 + int64_t(rng() % uint64_t(rows - box.offset[0]));
        if (p.shape.rank == 2) {
          box.offset.dim[1] = int64_t(rng() % uint64_t(cols));
          box.extent.dim[1] = 1 + int64_t(rng() % uint64_t(cols - box.offset[1]));
        }
        const int64_t width = p.shape.rank == 2 ? box.extent[1] : 1, n = box.extent.numel();
        Range r{int64_t(rng() % uint64_t(n + 1)), 0};
        r.end = r.begin + int64_t(rng() % uint64_t(n - r.begin + 1));
        std::vector<float> got(size_t(r.size())), want;
        for (int64_t e = r.begin; e < r.end; e++)
          want.push_back(all[size_t((box.offset[0] + e / width) * cols +
                                    (p.shape.rank == 2 ? box.offset[1] : 0) + e % width)]);
        folder.read(p.ours, box, r, Tensor(got.data(), {r.size()}, DType::f32));
        EXPECT_EQ(got, want) << p.ours;
      }
    }
  }
}

TEST(Hf, OutAndInAgainIsBitExactInEveryType) {
  for (const std::string& c : kCases)
    for (DType t : {DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(c + " " + std::string(name_of(t)));
      TempFolder tmp;
      ModelSpec spec = spec_of(kModels / c);
      fs::create_directory(tmp / "theirs");
      Weights theirs(kModels / c);
      theirs.convert(t);
      theirs.write(tmp / "theirs/model.safetensors");
      HfFolder in(tmp / "theirs", spec);
      EXPECT_EQ(in.dtype(), t);
      export_hf(tmp / "ours", spec, getter_of(in), {.dtype = t});
      // The very bytes that the reference library wrote (a single file, not shards, written in its order).
      EXPECT_EQ(read_text(tmp / "ours/model.safetensors"), read_text(tmp / "theirs/model.safetensors"));
      if (t == DType::f32 && fs::exists(kModels / c / "model.safetensors")) {
        EXPECT_EQ(read_text(tmp / "ours/model.safetensors"), read_text(kModels / c / "model.safetensors"));
      }
      EXPECT_EQ(model_from_hf(tmp / "ours/config.json"), spec);
      EXPECT_EQ(names_in(tmp / "ours"), (std::vector<std::string>{"config.json", "model.safetensors"}));
    }
}

TEST(Hf, ReadsBf16AndF16AsF32AndBack) {
  TempFolder tmp;
  ModelSpec spec = spec_of(kModels / "gpt2");
  Weights w(kModels / "gpt2");
  w.convert(DType::f16);
  w.write(tmp / "model.safetensors");
  HfFolder f(tmp.path(), spec);
  std::vector<float> as_f32(size_t(3 * 32));
  std::vector<bf16> as_bf16(as_f32.size());
  Slice box{{7, 0}, {3, 32}};
  f.read("blocks.0.attn.v.weight", box, {0, 96}, Tensor(as_f32.data(), {96}, DType::f32));
  f.read("blocks.0.attn.v.weight", box, {0, 96}, Tensor(as_bf16.data(), {96}, DType::bf16));
  const std::string& raw = w.tensors.at("transformer.h.0.attn.c_attn.weight").second;
  for (int64_t o = 0; o < 3; o++)
    for (int64_t i = 0; i < 32; i++) {
      uint16_t h;
      std::memcpy(&h, raw.data() + 2 * (i * 96 + 64 + 7 + o), 2);
      EXPECT_EQ(as_f32[size_t(o * 32 + i)], float(std::bit_cast<f16>(h)));
      EXPECT_EQ(as_bf16[size_t(o * 32 + i)].bits, bf16(float(std::bit_cast<f16>(h))).bits);
    }
}

TEST(Hf, FilesOfTheBareModelHaveNoPrefix) {
  for (const std::string& c : kCases) {
    TempFolder tmp;
    ModelSpec spec = spec_of(kModels / c);
    Weights w(kModels / c);
    std::vector<std::string> names;
    for (const auto& [name, t] : w.tensors) names.push_back(name);
    const std::string prefix(hf_prefix(spec));
    for (const std::string& n : names)
      if (n.starts_with(prefix)) w.rename(n, n.substr(prefix.size()));
    w.write(tmp / "model.safetensors");
    HfFolder bare(tmp.path(), spec), full(kModels / c, spec);
    for (const HfPlace& p : hf_places(spec)) EXPECT_EQ(read_f32(bare, p), read_f32(full, p)) << p.ours;
  }
}

TEST(Hf, BuffersOfOldVersionsAreIgnoredAndListed) {
  TempFolder tmp;
  Weights w(kModels / "gpt2");
  w.add("transformer.h.0.attn.bias", DType::u8, {1, 1, 48, 48});
  w.add("transformer.h.1.attn.masked_bias", DType::f32, {});
  w.write(tmp / "model.safetensors");
  ModelSpec spec = spec_of(kModels / "gpt2");
  EXPECT_EQ(HfFolder(tmp.path(), spec).ignored(),
            (std::vector<std::string>{"transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"}));
  Weights l(kModels / "llama3");
  l.add("model.layers.1.self_attn.rotary_emb.inv_freq", DType::f32, {4});
  l.write(tmp / "model.safetensors");
  EXPECT_EQ(HfFolder(tmp.path(), spec_of(kModels / "llama3")).ignored().size(), 1u);
  EXPECT_FALSE(hf_is_buffer(spec, "h.0.attn.c_attn.bias"));
  EXPECT_FALSE(hf_is_buffer(spec, "h.attn.bias"));
  EXPECT_FALSE(hf_is_buffer(spec, "h.0x.attn.bias"));
  EXPECT_FALSE(hf_is_buffer(spec, "layers.0.self_attn.rotary_emb.inv_freq"));
}

TEST(Hf, WhatDoesNotFitIsRefusedByName) {
  TempFolder tmp;
  ModelSpec gpt2 = spec_of(kModels / "gpt2"), llama3 = spec_of(kModels / "llama3"),
            llama2 = spec_of(kModels / "llama2");
  auto refuse = [&](const std::string& c, const ModelSpec& spec, const std::function<void(Weights&)>& change,
                    std::vector<std::string> parts) {
    Weights w(kModels / c);
    change(w);
    w.write(tmp / "model.safetensors");
    expect_refused([&] { HfFolder(tmp.path(), spec); }, parts);
  };
  refuse("gpt2", gpt2, [](Weights& w) { w.tensors.erase("transformer.h.1.attn.c_attn.weight"); },
         {"lacks 1 of", "transformer.h.1.attn.c_attn.weight"});
  refuse("llama3", llama3, [](Weights& w) { w.tensors.erase("model.norm.weight"); },
         {"lacks 1", "model.norm.weight"});
  refuse("llama3", llama3,
         [](Weights& w) { w.add("model.layers.0.self_attn.q_proj.bias", DType::f32, {48}); },
         {"holds 1 tensors", "model.layers.0.self_attn.q_proj.bias"});
  refuse("gpt2", gpt2, [](Weights& w) { w.add("transformer.h.0.attn.c_attn.lora\n", DType::f32, {1}); },
         {"lora\\x0a"});
  refuse("gpt2", gpt2,
         [](Weights& w) {
           w.tensors.at("transformer.wpe.weight").first.shape = {32, 48};
         },
         {"'transformer.wpe.weight'", "[32, 48]", "makes it [48, 32]"});
  refuse("llama3", llama3, [](Weights& w) { w.add("model.norm.weight", DType::f64, {48}); },
         {"'model.norm.weight'", "F64", "F32, BF16 or F16"});
  refuse("llama3", gpt2, [](Weights&) {}, {"lacks 28 of", "wte.weight", "and 25 more"});
  ModelSpec deeper = llama3;
  deeper.layers = 3;
  refuse("llama3", deeper, [](Weights&) {}, {"lacks 9", "model.layers.2."});
  deeper.layers = 1;
  refuse("llama3", deeper, [](Weights&) {}, {"holds 9", "model.layers.1."});
  // A head beside a tied embedding: equal or refused.
  auto with_head = [](Weights& w) {
    w.tensors["lm_head.weight"] = w.tensors.at("model.embed_tokens.weight");
    w.tensors["lm_head.weight"].first.name = "lm_head.weight";
  };
  {
    Weights w(kModels / "llama3");
    with_head(w);
    w.write(tmp / "model.safetensors");
    EXPECT_NO_THROW(HfFolder(tmp.path(), llama3));
  }
  refuse("llama3", llama3, [&](Weights& w) { with_head(w), w.tensors["lm_head.weight"].second[5] ^= 1; },
         {"'lm_head.weight' differs from 'model.embed_tokens.weight'", "tie_word_embeddings"});
  refuse("llama2", llama2, [&](Weights& w) { w.tensors.erase("lm_head.weight"); },
         {"lacks 1", "lm_head.weight"});
  fs::remove(tmp / "model.safetensors");
  expect_refused([&] { HfFolder(tmp.path(), gpt2); },
                 {"neither model.safetensors nor model.safetensors.index.json"});

  HfFolder good(kModels / "gpt2", gpt2);
  float f;
  expect_refused(
      [&] {
        good.read("head.weight", {{0, 0}, {1, 1}}, {0, 1}, Tensor(&f, {1}, DType::f32));
      },
      {"no parameter 'head.weight'"});
  expect_refused(
      [&] {
        good.read("norm.weight", {{32}, {1}}, {0, 1}, Tensor(&f, {1}, DType::f32));
      },
      {"norm.weight", "leaves"});
  ModelSpec odd = gpt2;
  odd.attn_bias = false;
  expect_refused([&] { hf_places(odd); }, {"model.attn_bias"});
  odd = llama3, odd.norm = "layer";
  expect_refused([&] { hf_places(odd); }, {"model.norm", "RMSNorm"});
  odd.arch = "mamba";
  expect_refused([&] { hf_places(odd); }, {"model.arch", "'mamba'"});
}

// safetensors stores memory that two names share once, under either name; an index may list both.
TEST(Hf, ATiedTableIsReadUnderEitherName) {
  const std::pair<const char*, const char*> tied[] = {{"llama3", "model.embed_tokens.weight"},
                                                      {"gpt2", "transformer.wte.weight"},
                                                      {"qwen2_tied", "model.embed_tokens.weight"}};
  for (const auto& [name, embedding] : tied) {
    const ModelSpec spec = spec_of(kModels / name);
    ASSERT_TRUE(spec.tied) << name;
    const HfFolder original(kModels / name, spec);
    TempFolder tmp;
    Weights w(kModels / name);
    w.rename(embedding, "lm_head.weight");
    w.write(tmp / "model.safetensors");
    const HfFolder alias(tmp.path(), spec);
    for (const HfPlace& p : hf_places(spec)) EXPECT_EQ(read_f32(alias, p), read_f32(original, p)) << name;

    // In shards: the index lists both names, of which the shard has one.
    fs::rename(tmp / "model.safetensors", tmp / "model-00001-of-00001.safetensors");
    auto write_index = [&](const std::vector<std::string>& more) {
      std::string list;
      for (const auto& [tensor, t] : w.tensors)
        list += "\"" + tensor + "\": \"model-00001-of-00001.safetensors\", ";
      for (const std::string& tensor : more)
        list += "\"" + tensor + "\": \"model-00001-of-00001.safetensors\", ";
      list.resize(list.size() - 2);
      write_raw(tmp / "model.safetensors.index.json", "{\"weight_map\": {" + list + "}}");
    };
    write_index({embedding});
    EXPECT_NO_THROW(HfFolder(tmp.path(), spec)) << name;
    write_index({"model.norm.extra"});
    expect_refused([&] { HfFolder(tmp.path(), spec); }, {"no tensor 'model.norm.extra'"});
  }
  // Without a tie the head and the embedding are two tensors.
  const ModelSpec llama2 = spec_of(kModels / "llama2");
  TempFolder tmp;
  Weights w(kModels / "llama2");
  w.tensors.erase("model.embed_tokens.weight");
  w.write(tmp / "model.safetensors");
  expect_refused([&] { HfFolder(tmp.path(), llama2); }, {"lacks 1", "model.embed_tokens.weight"});
}

// A tensor of a type that no weight has is none that the configuration forgot.
TEST(Hf, UnusedTensorsOfOtherTypesAreIgnored) {
  const ModelSpec spec = spec_of(kModels / "llama3");
  TempFolder tmp;
  Weights w(kModels / "llama3");
  for (DType t : {DType::u8, DType::i32, DType::i64})
    w.add("model.layers.0.self_attn.k_scale." + std::string(name_of(t)), t, {3});
  w.write(tmp / "model.safetensors");
  EXPECT_EQ(HfFolder(tmp.path(), spec).ignored().size(), 3u);
  w.add("model.layers.0.self_attn.q_proj.bias", DType::bf16, {48});
  w.write(tmp / "model.safetensors");
  expect_refused([&] { HfFolder(tmp.path(), spec); }, {"holds 1 tensors", "q_proj.bias"});
}

TEST(Hf, AnIndexThatLiesIsRefused) {
  TempFolder tmp;
  ModelSpec spec = spec_of(kModels / "llama2");
  for (const std::string& name : names_in(kModels / "llama2"))
    fs::copy_file(kModels / "llama2" / name, tmp / name);
  const fs::path index = tmp / "model.safetensors.index.json";
  const std::string good = read_text(index);
  EXPECT_NO_THROW(HfFolder(tmp.path(), spec));
  auto refuse = [&](const std::string& from, const std::string& to, std::vector<std::string> parts) {
    std::string bad = good;
    ASSERT_NE(bad.find(from), std::string::npos);
    bad.replace(bad.find(from), from.size(), to);
    write_raw(index, bad);
    expect_refused([&] { HfFolder(tmp.path(), spec); }, parts);
  };
  const std::string first = "\"lm_head.weight\": \"model-00003-of-00003.safetensors\"";
  refuse(first, "\"lm_head.weight\": \"../model-00003-of-00003.safetensors\"",
         {"'lm_head.weight'", "../model", "same folder"});
  refuse(first, "\"lm_head.weight\": \"/etc/passwd\"", {"/etc/passwd"});
  refuse(first, "\"lm_head.weight\": \"..\"", {"'..'"});
  refuse(first, "\"lm_head.weight\": \"x\\u0000.safetensors\"", {"x\\x00.safetensors"});
  refuse(first, "\"lm_head.weight\": 3", {"'lm_head.weight' is in 3"});
  refuse(first, "\"lm_head.weight\": \"absent.safetensors\"", {"absent.safetensors", "No such file"});
  refuse(first, "\"lm_head.weight\": \"model-00001-of-00003.safetensors\"", {"'lm_head.weight'"});
  refuse(first + ",", "", {"holds tensor 'lm_head.weight'", "does not list"});
  refuse("\"weight_map\"", "\"map\"", {"no 'weight_map'"});
  refuse(first, first + ", \"extra\": \"model-00001-of-00003.safetensors\"", {"no tensor 'extra'"});
  refuse("{", "", {"not JSON"});

  std::mt19937_64 rng(42);
  largest_allocation_and_reset();
  int loaded = 0;
  for (int i = 0; i < 600; i++) {
    write_raw(index, mutated(good, rng));
    loaded += loads_or_refused([&] { HfFolder(tmp.path(), spec); });
  }
  EXPECT_GT(loaded, 10);
  write_raw(index, good);
  const std::string shard = read_text(tmp / "model-00003-of-00003.safetensors");
  for (int i = 0; i < 600; i++) {
    write_raw(tmp / "model-00003-of-00003.safetensors", mutated(shard, rng));
    loads_or_refused([&] {
      HfFolder f(tmp.path(), spec);
      for (const HfPlace& p : hf_places(spec)) read_f32(f, p);
    });
  }
  EXPECT_LT(largest_allocation_and_reset(), 1u << 20);
}

TEST(Hf, AnExportAppearsWholeOrNotAtAll) {
  TempFolder tmp;
  ModelSpec spec = spec_of(kModels / "llama3");
  HfFolder in(kModels / "llama3", spec);
  write_raw(tmp / "tokenizer.json", "{}");
  write_raw(tmp / "notes.txt", "mine");
  fs::path out = tmp / "deep/export";
  int asked = 0;
  auto fails = [&](std::string_view name, const Tensor& dst) {
    if (++asked == 5) run_failed("on purpose");
    in.read(name, dst);
  };
  EXPECT_THROW(export_hf(out, spec, fails), Error);
  EXPECT_TRUE(names_in(tmp / "deep").empty());
  export_hf(out, spec, getter_of(in), {.copy = {tmp / "tokenizer.json"}});
  EXPECT_EQ(names_in(out), (std::vector<std::string>{"config.json", "model.safetensors", "tokenizer.json"}));
  EXPECT_EQ(read_text(out / "tokenizer.json"), "{}");
  // Again, over itself, with a slash: replaced.
  export_hf(out / "", spec, getter_of(in), {.dtype = DType::bf16, .bos = 1, .eos = {2}});
  EXPECT_EQ(names_in(out), (std::vector<std::string>{"config.json", "model.safetensors"}));
  EXPECT_EQ(names_in(tmp / "deep"), (std::vector<std::string>{"export"}));
  EXPECT_EQ(HfFolder(out, spec).dtype(), DType::bf16);
  asked = 0;
  EXPECT_THROW(export_hf(out, spec, fails), Error);
  EXPECT_EQ(HfFolder(out, spec).dtype(), DType::bf16);
  // Somebody's folder is left alone.
  write_raw(out / "thesis.tex", "mine");
  expect_refused([&] { export_hf(out, spec, getter_of(in)); }, {out.string(), "'thesis.tex'"});
  EXPECT_TRUE(fs::exists(out / "thesis.tex"));
  expect_refused([&] { export_hf(tmp / "notes.txt", spec, getter_of(in)); }, {"notes.txt"});
  expect_refused([&] { export_hf(tmp / "x", spec, getter_of(in), {.copy = {tmp / "notes.txt"}}); },
                 {"no tokenizer file"});
  expect_refused(
      [&] { export_hf(tmp / "x", spec, getter_of(in), {.copy = {tmp / "tokenizer_config.json"}}); },
      {"tokenizer_config.json", "No such file"});
  expect_refused([&] { export_hf(tmp / "x", spec, getter_of(in), {.dtype = DType::i32}); },
                 {"i32", "f32, bf16 or f16"});
  EXPECT_FALSE(fs::exists(tmp / "x"));
  EXPECT_FALSE(fs::exists(tmp / "x.part"));
  EXPECT_EQ(read_text(tmp / "notes.txt"), "mine");
}

}  // namespace
}  // namespace trireme
