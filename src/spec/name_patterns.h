// Patterns that choose matrices of a model by name: precision.fp8_layers, lora.targets.
#pragma once
#include <string_view>

#include "spec/field.h"

namespace trireme {

// '*' stands for any text.
inline bool matches(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  const std::string_view rest = pattern.substr(star + 1);
  for (size_t i = star; i <= name.size(); i++)
    if (matches(rest, name.substr(i))) return true;
  return false;
}

// A pattern without the "!" that makes it take out.
inline std::string_view bare_pattern(std::string_view pattern) {
  return pattern.substr(pattern.starts_with('!') ? 1 : 0);
}

// By the last pattern that matches; "!" takes out.
inline bool chosen(const Texts& patterns, std::string_view name) {
  bool in = false;
  for (const std::string& p : patterns)
    if (matches(bare_pattern(p), name)) in = !p.starts_with('!');
  return in;
}

}  // namespace trireme
