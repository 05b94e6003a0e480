// Unicode's composed normal form, NFC (Unicode Standard Annex 15), as tokenizers ask for it before they
// split.
//
// The tables are those of the peer library (an older Unicode version than the one it splits by): a text must
// become the same characters here and there, or its ids would differ.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "text/unicode.h"

namespace trireme {

// Appends NFC of text to out. Bytes that are no UTF-8 stay where they are; nothing composes across them.
void append_nfc(std::string& out, std::string_view text);
// Whether NFC leaves the text as it is, as far as a look at single characters tells: false means "perhaps
// not".
bool surely_nfc(std::string_view text);

// \w of the peer's added tokens that must be words of their own.
bool is_word_char(uint32_t code);

// Generated tables (normal_form_table.cc), ascending by code point.
struct Decomposition {
  uint32_t code, first, second;  // by one step; second 0 = a single character
  bool composes;                 // first + second become code again
};
struct CombiningRange {
  uint32_t first, last;  // inclusive
  uint8_t kind;          // canonical combining class, > 0
};
std::span<const Decomposition> decompositions();
std::span<const CombiningRange> combining_ranges();
std::span<const CodeRange> word_ranges();

}  // namespace trireme
