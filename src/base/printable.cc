#include "base/printable.h"

#include <fmt/format.h>

namespace trireme {

std::string printable(std::string_view untrusted) {
  constexpr size_t kMost = 100;
  std::string out;
  for (char c : untrusted) {
    if (out.size() >= kMost) return out + "...";
    if (c >= 0x20 && c < 0x7f)
      out += c;
    else
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return out;
}

}  // namespace trireme
