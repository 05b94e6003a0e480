// A Hugging Face folder for a model of known shape: the first part of the input is model.safetensors, or,
// when there is a second part, that is the index, and the first part is the one shard that it may name. A
// file that speaks of GPT-2's embedding is read for a gpt2, whose matrices are turned and whose head is tied.
#include <vector>

#include "checkpoint/hf.h"
#include "fuzz.h"
#include "safetensors.h"

namespace {

trireme::ModelSpec tiny(std::string_view arch) {
  using namespace trireme;
  ModelSpec m = ModelSpec::of(arch);
  const bool llama = arch == "llama";
  m.vocab = 3, m.layers = 1, m.hidden = 4, m.heads = 2, m.kv_heads = llama ? 1 : 2, m.ffn = 5;
  m.finish(8);
  return m;
}

}  // namespace

// The parts have a length before them too: one is changed by itself, and it is put right.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  using namespace trireme;
  if (size < 2 || max_size < 16 || seed % 16 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const auto [first, second] = fuzz::halves(data, size);
  std::string weights(first), index(second);
  const bool of_index = !index.empty() && seed / 16 % 2;
  std::string& changed = of_index ? index : weights;
  if (changed.empty() && size >= max_size) return LLVMFuzzerMutate(data, size, max_size);
  const size_t had = changed.size(), most = had + std::min<size_t>(max_size - size, 65535 - had % 65536);
  changed.resize(most);
  auto* bytes = reinterpret_cast<uint8_t*>(changed.data());
  changed.resize(of_index ? LLVMFuzzerMutate(bytes, had, most)
                          : fuzz::mutate_safetensors(bytes, had, most, seed / 32));
  const size_t n = std::min<size_t>(weights.size(), 65535);
  data[0] = uint8_t(n), data[1] = uint8_t(n >> 8);
  std::memcpy(data + 2, weights.data(), n);
  std::memcpy(data + 2 + n, index.data(), index.size());
  return 2 + n + index.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  static const fuzz::Folder folder;
  static const ModelSpec llama = tiny("llama"), gpt2 = tiny("gpt2");
  // 8-bit weights are read, and a layer behind the model's is passed by.
  static const fs::path config = folder.put(
      "config.json", R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [2, 3]},
                         "num_nextn_predict_layers": 1})");
  const auto [weights, index] = fuzz::halves(data, size);
  const ModelSpec& model = weights.find("wte.weight") == weights.npos ? llama : gpt2;
  std::error_code ignored;
  fs::remove(folder / "model.safetensors", ignored);
  fs::remove(folder / "model.safetensors.index.json", ignored);
  folder.put(index.empty() ? "model.safetensors" : "a.safetensors", weights);
  if (!index.empty()) folder.put("model.safetensors.index.json", index);
  fuzz::accepts([&] {
    const HfFolder hf(folder.path(), model);
    for (const HfPlace& place : hf_places(model)) {
      std::vector<float> to(size_t(place.shape.numel()));
      hf.read(place.ours, Tensor(to.data(), place.shape, DType::f32));
    }
  });
  return 0;
}
