// A Hugging Face folder for a model of known shape: the first part of the input is model.safetensors, or,
// when there is a second part, that is the index, and the first part is the one shard that it may name.
#include <vector>

#include "checkpoint/hf.h"
#include "fuzz.h"

namespace {

trireme::ModelSpec tiny() {
  using namespace trireme;
  ModelSpec m = ModelSpec::of("llama");
  m.vocab = 3, m.layers = 1, m.hidden = 4, m.heads = 2, m.kv_heads = 1, m.ffn = 5;
  m.finish(8);
  return m;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  static const fuzz::Folder folder;
  static const ModelSpec model = tiny();
  // 8-bit weights are read, and a layer behind the model's is passed by.
  static const fs::path config = folder.put(
      "config.json", R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [2, 3]},
                         "num_nextn_predict_layers": 1})");
  const auto [weights, index] = fuzz::halves(data, size);
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
