// Sets of code points: the classes of split patterns.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/unicode.h"

namespace trireme {

class CharSet {
 public:
  CharSet() = default;
  explicit CharSet(std::vector<CodeRange> ranges);  // in any order; may overlap
  static CharSet of(uint32_t code) { return CharSet({{code, code}}); }
  static CharSet all() { return CharSet({{0, 0x10FFFF}}); }

  const std::vector<CodeRange>& ranges() const { return ranges_; }  // ascending, with gaps between them
  bool empty() const { return ranges_.empty(); }
  bool contains(uint32_t code) const;

  CharSet operator|(const CharSet&) const;
  CharSet operator&(const CharSet&) const;
  CharSet operator~() const;
  bool operator==(const CharSet&) const;

 private:
  std::vector<CodeRange> ranges_;
};

// The sets of the tokenizers library's engine (Oniguruma, Unicode 16), compared with it by
// tools/make_unicode_table.py.
CharSet space_chars();       // \s
CharSet digit_chars();       // \d
CharSet word_chars();        // \w and \b
CharSet class_word_chars();  // \w inside of a class, which lacks some numbers of Latin-1
// \p{name}: general categories by their short or long names, and the scripts of unicode.h. Case, spaces, '-'
// and '_' in the name do not matter. nullopt: unknown.
std::optional<CharSet> property_chars(std::string_view name);
// Whether no character of the set beyond ASCII has another case.
bool caseless_beyond_ascii(const CharSet&);

}  // namespace trireme
