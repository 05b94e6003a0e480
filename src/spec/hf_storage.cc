#include "spec/hf_storage.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/json_depth.h"
#include "spec/suggest.h"
#include "spec/toml.h"

namespace trireme {
namespace {

constexpr size_t kMostStorageBytes = 4 << 20;  // of a config.json
constexpr int64_t kMostBlock = 1 << 20, kMostFurther = 1024;

std::string shown_value(const nlohmann::json& j) {
  return j.is_string() ? shown(j.get_ref<const std::string&>()) : shown(j.dump(-1, ' ', true));
}

void read_blocks(const nlohmann::json& q, std::string_view file, HfStorage& out) {
  auto fail = [&](const std::string& text) { bad_request("{}: quantization_config: {}", file, text); };
  if (!q.is_object()) fail("is no object");
  for (const auto& [key, right] : {std::pair{"quant_method", "fp8"}, {"fmt", "e4m3"}}) {
    const nlohmann::json value = q.value(key, nlohmann::json());
    if (value != right && !(value.is_null() && key == std::string_view("fmt")))
      fail(fmt::format("{} is {}; only {} is supported", key, shown_value(value), right));
  }
  const nlohmann::json block = q.value("weight_block_size", nlohmann::json());
  const auto is_size = [](const nlohmann::json& j) {
    return j.is_number_integer() && j.get<double>() >= 1 && j.get<double>() <= double(kMostBlock);
  };
  if (!block.is_array() || block.size() != 2 || !std::all_of(block.begin(), block.end(), is_size))
    fail(fmt::format("weight_block_size is {}; right are rows and columns, two numbers from 1 to {}",
                     shown_value(block), kMostBlock));
  out.block_rows = block[0].get<int64_t>(), out.block_cols = block[1].get<int64_t>();
  // Without effect on the weights: activation_scheme and scale_fmt (rounding of activations and scales in
  // serving); modules_to_not_convert (the tensors' types show it).
  for (const auto& [key, value] : q.items())
    if (key != "quant_method" && key != "fmt" && key != "weight_block_size" && key != "activation_scheme" &&
        key != "scale_fmt" && key != "modules_to_not_convert")
      fail(fmt::format("{} is not supported: it may change what the weights are", shown(key)));
}

}  // namespace

HfStorage hf_storage(std::string_view text, std::string_view file) {
  HfStorage out;
  if (text.size() > kMostStorageBytes) bad_request("{}: too long for a config.json", file);
  // Its parts are copied and printed, by recursion.
  if (json_depth(text) > kMostJsonDepth)
    bad_request("{}: quantization_config cannot be read: JSON nested deeper than {} levels", file,
                kMostJsonDepth);
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) bad_request("{}: no JSON object", file);
  if (auto it = json.find("quantization_config"); it != json.end() && !it->is_null())
    read_blocks(*it, file, out);
  if (auto it = json.find("num_nextn_predict_layers"); it != json.end() && it->is_number_integer())
    out.further_layers = std::clamp<int64_t>(it->get<int64_t>(), 0, kMostFurther);
  return out;
}
HfStorage hf_storage(const fs::path& config_json) {
  return hf_storage(read_small(config_json, kMostStorageBytes), config_json.string());
}

}  // namespace trireme
