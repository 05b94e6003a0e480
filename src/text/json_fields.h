// Reading tokenizer.json: members that may be absent, and values as an error message may show them.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>

#include "base/json.h"

namespace trireme {

// The member, or null when it is absent or v is no object.
inline const nlohmann::json& member(const nlohmann::json& v, const char* key) {
  static const nlohmann::json null;
  auto it = v.is_object() ? v.find(key) : v.end();
  return it == v.end() ? null : *it;
}
inline bool is_type(const nlohmann::json& v, const char* type) {
  const nlohmann::json& t = member(v, "type");
  return t.is_string() && t == type;
}

// Printable, and not endless.
inline std::string in_quotes(std::string_view s) {
  size_t end = std::min<size_t>(s.size(), 60);
  while (end > 0 && end < s.size() && (uint8_t(s[end]) & 0xC0) == 0x80) end--;  // not inside a character
  std::string out = "\"";
  for (char c : s.substr(0, end)) out += uint8_t(c) < 0x20 || c == 0x7F ? '?' : c;
  return out + (end < s.size() ? "...\"" : "\"");
}
inline std::string shown(const nlohmann::json& v) {
  std::string text = v.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 60) + "..." : text;
}

}  // namespace trireme
