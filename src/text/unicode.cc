#include "text/unicode.h"

#include <algorithm>
#include <array>
#include <vector>

namespace trireme {
namespace {

// GPT-2's rule: '!'..'~', 0xA1..0xAC and 0xAE..0xFF are printable and stay; the others follow from U+0100 in
// order.
struct StandIns {
  std::array<uint32_t, 256> of_byte{};
  std::array<int16_t, 0x144> byte_of{};
  StandIns() {
    byte_of.fill(-1);
    uint32_t next = 0x100;
    for (uint32_t b = 0; b < 256; b++) {
      bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      of_byte[b] = printable ? b : next++;
      byte_of[of_byte[b]] = int16_t(b);
    }
  }
};

const StandIns& stand_ins() {
  static const StandIns table;
  return table;
}

bool continues(std::string_view text, size_t at) {
  return at < text.size() && (uint8_t(text[at]) & 0xC0) == 0x80;
}

}  // namespace

const CharClass* char_classes() {
  static const std::vector<CharClass> table = [] {
    std::vector<CharClass> t(0x110000, CharClass::other);
    for (const CategoryRange& r : category_ranges()) {
      const char major = name_of(r.category)[0];
      const CharClass kind = major == 'L'   ? CharClass::letter
                             : major == 'N' ? CharClass::number
                             : major == 'Z' ? CharClass::space
                                            : CharClass::other;
      std::fill(&t[r.first], &t[r.last] + 1, kind);
    }
    std::fill(&t[0x9], &t[0xD] + 1, CharClass::space);
    t[0x85] = CharClass::space;
    return t;
  }();
  return table.data();
}

std::string_view name_of(Category category) {
  constexpr std::string_view kNames = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCo";
  return kNames.substr(2 * size_t(category), 2);
}

CodePoint code_point_at(std::string_view text, size_t at) {
  uint32_t lead = uint8_t(text[at]);
  if (lead < 0x80) return {lead, 1, true};
  const CodePoint bad{lead, 1, false};
  uint32_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4) return bad;
  uint32_t code = lead & (0x7Fu >> bytes);
  for (uint32_t i = 1; i < bytes; i++) {
    if (!continues(text, at + i)) return bad;
    code = code << 6 | (uint8_t(text[at + i]) & 0x3F);
  }
  constexpr uint32_t kSmallest[5] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[bytes] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return bad;
  return {code, bytes, true};
}

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += char(code);
  } else if (code < 0x800) {
    out += char(0xC0 | code >> 6);
    out += char(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += char(0xE0 | code >> 12);
    out += char(0x80 | (code >> 6 & 0x3F));
    out += char(0x80 | (code & 0x3F));
  } else {
    out += char(0xF0 | code >> 18);
    out += char(0x80 | (code >> 12 & 0x3F));
    out += char(0x80 | (code >> 6 & 0x3F));
    out += char(0x80 | (code & 0x3F));
  }
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    CodePoint c = code_point_at(text, at);
    if (!c.valid) return false;
    at += c.bytes;
  }
  return true;
}

uint32_t stand_in(uint8_t byte) {
  return stand_ins().of_byte[byte];
}

int byte_of_stand_in(uint32_t code) {
  const auto& table = stand_ins().byte_of;
  return code < table.size() ? table[code] : -1;
}

std::string spell_bytes(std::string_view bytes) {
  std::string out;
  for (char b : bytes) append_utf8(out, stand_in(uint8_t(b)));
  return out;
}

bool unspell_bytes(std::string_view spelled, std::string& bytes) {
  bytes.clear();
  for (size_t at = 0; at < spelled.size();) {
    CodePoint c = code_point_at(spelled, at);
    int b = c.valid ? byte_of_stand_in(c.code) : -1;
    if (b < 0) return false;
    bytes += char(b);
    at += c.bytes;
  }
  return true;
}

}  // namespace trireme
