// The tokenizers of golden/pipelines.json, as files and parsed.
#pragma once
#include <span>
#include <string>

#include "base/json.h"
#include "source_dir.h"
#include "text/tokenizer.h"

namespace trireme {

inline const nlohmann::json& goldens() {
  static const nlohmann::json all =
      nlohmann::json::parse(read_text(test::source_dir() / "tests/unit/text/golden/pipelines.json"));
  return all;
}
inline Tokenizer parse_tokenizer(const std::string& json, std::string_view name) {
  return Tokenizer::parse(std::as_bytes(std::span(json)), name);
}
inline Tokenizer golden_tokenizer(const std::string& name) {
  return parse_tokenizer(goldens()["pipelines"][name]["file"].dump(), name);
}

}  // namespace trireme
