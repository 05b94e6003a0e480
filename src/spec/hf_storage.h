// What a config.json says of the tensors beside it, and nothing of the model: 8-bit weights, further layers.
#pragma once
#include <cstdint>
#include <string_view>

#include "base/file.h"

namespace trireme {

struct HfStorage {
  // quantization_config of DeepSeek-V3's kind (quant_method "fp8", fmt "e4m3", weight_block_size): matrices
  // may be F8_E4M3, with a tensor NAME_scale_inv that has one scale a block of so many rows and columns. 0:
  // none.
  int64_t block_rows = 0, block_cols = 0;
  int64_t further_layers = 0;  // num_nextn_predict_layers: behind the model's, and not part of it
};
// A quantization_config of another kind is a bad request that names the key.
HfStorage hf_storage(std::string_view json, std::string_view file);
HfStorage hf_storage(const fs::path& config_json);

}  // namespace trireme
