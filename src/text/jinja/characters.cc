#include "text/jinja/characters.h"

#include <locale.h>
#include <string.h>
#include <wctype.h>

#include <algorithm>

#include "text/unicode.h"

namespace trireme::jinja {
namespace {

bool is_blank(uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// The locale with upper and lower case of all letters; null if the C library lacks it.
locale_t every_letter() {
  static const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  return locale;
}

uint32_t upper(uint32_t c) {
  if (c < 128) return c >= 'a' && c <= 'z' ? c - 32 : c;
  return every_letter() ? uint32_t(towupper_l(wint_t(c), every_letter())) : c;
}
uint32_t lower(uint32_t c) {
  if (c < 128) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  return every_letter() ? uint32_t(towlower_l(wint_t(c), every_letter())) : c;
}

void append_upper(std::string& out, uint32_t c, bool title) {
  constexpr uint32_t kSharpS = 0xDF;
  if (c == kSharpS)
    out += title ? "Ss" : "SS";
  else
    append_utf8(out, upper(c));
}

size_t last_character(std::string_view text) {
  size_t at = text.size() - 1;
  for (size_t i = 0; i < 3 && at > 0 && (uint8_t(text[at]) & 0xC0) == 0x80; i++) at--;
  return at + character_at(text, at) == text.size() ? at : text.size() - 1;
}

}  // namespace

size_t character_at(std::string_view text, size_t at) {
  return code_point_at(text, at).bytes;
}

int64_t characters(std::string_view text) {
  int64_t n = 0;
  for (size_t at = 0; at < text.size(); n++) at += uint8_t(text[at]) < 128 ? 1 : character_at(text, at);
  return n;
}

size_t byte_of(std::string_view text, int64_t index) {
  size_t at = 0;
  for (int64_t i = 0; i < index && at < text.size(); i++) at += character_at(text, at);
  return at;
}

size_t blank_at(std::string_view text, size_t at) {
  const CodePoint c = code_point_at(text, at);
  return c.valid && is_blank(c.code) ? c.bytes : 0;
}

std::string_view strip(std::string_view text, const std::string* of, bool left, bool right) {
  auto goes = [&](size_t at) {
    if (!of) return blank_at(text, at) > 0;
    return find_text(*of, text.substr(at, character_at(text, at)), 0) != std::string_view::npos;
  };
  while (left && !text.empty() && goes(0)) text.remove_prefix(character_at(text, 0));
  while (right && !text.empty() && goes(last_character(text))) text = text.substr(0, last_character(text));
  return text;
}

size_t find_text(std::string_view text, std::string_view part, size_t at) {
  if (at > text.size()) return std::string_view::npos;
  if (part.empty()) return at;
  const void* found = memmem(text.data() + at, text.size() - at, part.data(), part.size());
  return found ? size_t(static_cast<const char*>(found) - text.data()) : std::string_view::npos;
}

bool is_letter(uint32_t code) {
  return code <= 0x10FFFF && char_classes()[code] == CharClass::letter;
}

std::string with_case(std::string_view text, Case to) {
  std::string out;
  bool begins = true;  // the next letter begins a word
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (!c.valid)
      out += text[at];
    else if (to == Case::upper || (to != Case::lower && begins))
      append_upper(out, c.code, to != Case::upper);
    else
      append_utf8(out, lower(c.code));
    begins = to == Case::title && !(c.valid && is_letter(c.code));
    at += c.bytes;
  }
  return out;
}

}  // namespace trireme::jinja
