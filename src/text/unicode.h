// What byte-level tokenizers need of Unicode: code points out of bytes, and the class that split patterns ask
// for.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace trireme {

// \p{L}, \p{N}, \s, and everything else, as split patterns of tokenizers see a character.
enum class CharClass : uint8_t { other, letter, number, space };

// General categories; Cn (unassigned) is not in the table.
enum class Category : uint8_t {
  Lu,
  Ll,
  Lt,
  Lm,
  Lo,
  Mn,
  Mc,
  Me,
  Nd,
  Nl,
  No,
  Pc,
  Pd,
  Ps,
  Pe,
  Pi,
  Pf,
  Po,
  Sm,
  Sc,
  Sk,
  So,
  Zs,
  Zl,
  Zp,
  Cc,
  Cf,
  Co
};
std::string_view name_of(Category);  // "Lu"

struct CodeRange {
  uint32_t first, last;  // inclusive
};
struct CategoryRange {
  uint32_t first, last;  // inclusive
  Category category;
};
// Generated (unicode_table.cc): ascending and disjoint, of Unicode 16.
std::span<const CategoryRange> category_ranges();
enum class Script : uint8_t { han, hangul, hiragana, katakana };
std::span<const CodeRange> script_ranges(Script);

// Class of every code point, one byte each (1.1 MB, made on first use).
const CharClass* char_classes();

struct CodePoint {
  uint32_t code = 0;
  uint32_t bytes = 0;  // 1 to 4
  bool valid = false;
};
// The code point at text[at]; at < text.size(). A byte that starts no well-formed UTF-8 sequence (stray or
// missing continuation, overlong form, surrogate, above U+10FFFF) is a code point of its own: valid = false,
// one byte.
CodePoint code_point_at(std::string_view text, size_t at);

void append_utf8(std::string& out, uint32_t code);  // code <= 0x10FFFF
bool is_utf8(std::string_view);

// GPT-2's printable stand-ins for bytes, as vocabularies of byte-level tokenizers spell them: printable
// Latin-1 characters stand for themselves, the 68 others for U+0100 and following.
uint32_t stand_in(uint8_t byte);
int byte_of_stand_in(uint32_t code);              // -1 when it stands for no byte
std::string spell_bytes(std::string_view bytes);  // "\n a" -> U+010A U+0120 a, in UTF-8
bool unspell_bytes(std::string_view spelled,
                   std::string& bytes);  // false when a character stands for no byte

}  // namespace trireme
