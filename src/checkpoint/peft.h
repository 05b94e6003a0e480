// Adapters in the format of Hugging Face's PEFT: adapter_config.json and adapter_model.safetensors. A tensor
// is base_model.model.<module>.lora_A.weight [r, in] or .lora_B.weight [out, r], by the module's name in
// transformers.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/hf_names.h"
#include "checkpoint/parts.h"
#include "checkpoint/safetensors.h"

namespace trireme {

// A matrix that may have an adapter.
struct PeftPlace {
  std::string ours;    // "blocks.0.attn.q"
  std::string theirs;  // "model.layers.0.self_attn.q_proj"
  int64_t out = 0, in = 0;
};
// The matrices of attention and of dense feed-forwards that are whole modules in transformers. GPT-2's q, k
// and v are one module there, and are left out.
std::vector<PeftPlace> peft_places(const ModelSpec&);

struct PeftConfig {
  int64_t rank = 0;
  double alpha = 0;
};
// bad_request naming the key if it is not plain LoRA: DoRA, rsLoRA, ranks or alphas by pattern, trained
// biases or whole modules.
PeftConfig peft_config(const fs::path& folder);

// An adapter's tensors, checked against the model when opened: each module has both factors, in their shapes.
class PeftFolder {
 public:
  PeftFolder(const fs::path& folder, const ModelSpec&);
  const PeftConfig& config() const { return config_; }
  std::vector<std::string> matrices() const;  // ours, in the model's order
  // Elements of a factor of the matrix, 'a' or 'b', into contiguous f32 host memory.
  void read(std::string_view matrix, char which, const Slice& box, const Range&, const Tensor& dst) const;

 private:
  struct Found {
    PeftPlace place;
    const SafetensorsEntry *a = nullptr, *b = nullptr;
  };
  fs::path folder_;
  PeftConfig config_;
  SafetensorsFile file_;
  std::vector<Found> found_;
};

// f32 values of a factor of a matrix (ours), row-major.
using FactorGetter = std::function<std::vector<float>(const std::string& matrix, char which)>;

// Writes the two files. The folder appears whole or not at all; one that is there is replaced if it holds
// only such files, else refused. base: base_model_name_or_path.
void export_peft(const fs::path& folder, const ModelSpec&, const PeftConfig&, const std::string& base,
                 const std::vector<std::string>& matrices, const FactorGetter&);

}  // namespace trireme
