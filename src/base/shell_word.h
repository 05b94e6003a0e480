// A text as one word of a shell's command.
#pragma once
#include <string>
#include <string_view>

namespace trireme {

inline std::string shell_word(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace trireme
