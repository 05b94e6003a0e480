#include "base/json_depth.h"

#include <algorithm>

namespace trireme {

int json_depth(std::string_view text) {
  int depth = 0, most = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); i++) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\')
        i++;
      else if (c == '"')
        quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      most = std::max(most, ++depth);
    } else if (c == ']' || c == '}') {
      depth = std::max(0, depth - 1);
    }
  }
  return most;
}

nlohmann::json shallow_json(std::string_view text) {
  if (json_depth(text) > kMostJsonDepth) return nlohmann::json(nlohmann::json::value_t::discarded);
  return nlohmann::json::parse(text.data(), text.data() + text.size(), nullptr, false);
}

}  // namespace trireme
