// Hugging Face's config.json: what it says of a gpt2, llama, qwen2 or qwen3, and the same written back.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "spec/model_spec.h"

namespace trireme {

// Every key that changes the maths is read or refused by name, and so is every key that is not known to be
// harmless: nothing is approximated in silence. One Error (request) lists all that is wrong, "FILE: key:
// problem, value, what is right" each. Notes: what is harmless but worth saying (dropout that is not
// applied). Derived sizes are filled in; `from` stays empty.
ModelSpec model_from_hf(const fs::path& config_json, std::vector<std::string>* notes = nullptr);
ModelSpec parse_hf_config(std::string_view json, std::string_view file,
                          std::vector<std::string>* notes = nullptr);

// What a config.json says beside the model.
struct HfExport {
  std::string dtype = "bfloat16";   // of the tensors beside it, by PyTorch's name
  std::optional<int64_t> bos = {};  // token ids
  std::vector<int64_t> eos = {};
  std::optional<int64_t> pad = {};
};
// The token ids of a config.json: they go through an export as they came.
struct HfIds {
  std::optional<int64_t> bos;
  std::vector<int64_t> eos;  // one, or several that all end a text
  std::optional<int64_t> pad;
};
HfIds hf_token_ids(std::string_view json, std::string_view file);
HfIds hf_token_ids(const fs::path& config_json);

// The config.json that transformers 4.43 or newer reads as this model. A model that its architecture
// there cannot be is a bad request by key.
std::string hf_config_json(const ModelSpec&, const HfExport& = {});

}  // namespace trireme
