#include "base/visible.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {
namespace {

// Bytes of the character that text begins with (the Unicode standard, table 3-7), and its code point; 0:
// none.
size_t utf8_character(std::string_view text, uint32_t& code) {
  auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = byte(0);
  code = first;
  if (first < 0x80) return 1;
  const size_t n = first >= 0xc2 && first <= 0xdf   ? 2
                   : first >= 0xe0 && first <= 0xef ? 3
                   : first >= 0xf0 && first <= 0xf4 ? 4
                                                    : 0;
  if (n == 0) return 0;
  code = first & (0x7f >> n);
  for (size_t i = 1; i < n; i++) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  const bool overlong = (n == 3 && code < 0x800) || (n == 4 && code < 0x10000);
  return surrogate || overlong || code > 0x10ffff ? 0 : n;
}

// C0 and C1 controls, DEL; line and paragraph separators; marks that reorder or hide text; the byte order
// mark.
bool is_unsafe(uint32_t c) {
  return c < 0x20 || (c >= 0x7f && c <= 0x9f) || (c >= 0x200b && c <= 0x200f) ||
         (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x2069) || c == 0xfeff || c == 0x61c;
}

std::string escaped(std::string_view text, bool lines) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0, n = 1; i < text.size(); i += n) {
    uint32_t code = 0;
    n = utf8_character(text.substr(i), code);
    if (n == 0) {
      n = 1;
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i]));
    } else if (!is_unsafe(code) || (lines && (code == '\n' || code == '\t'))) {
      out += text.substr(i, n);
    } else if (code == '\n' || code == '\t') {
      out += code == '\n' ? "\\n" : "\\t";
    } else {
      out += code < 0x20 ? fmt::format("\\x{:02x}", code) : fmt::format("\\u{:04x}", code);
    }
  }
  return out;
}

}  // namespace

std::string visible(std::string_view untrusted) {
  return escaped(untrusted, false);
}
std::string visible_lines(std::string_view text) {
  return escaped(text, true);
}

size_t whole_characters(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); back++) {
    const auto c = static_cast<unsigned char>(text[text.size() - back]);
    if ((c & 0xc0) == 0x80) continue;
    const size_t wants = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
    return wants > back ? text.size() - back : text.size();
  }
  return text.size();
}

void print_visible(std::FILE* out, std::string_view text) {
  fmt::print(out, "{}", visible_lines(text));  // throws std::system_error if it cannot be written
}

}  // namespace trireme
