#include "text/split.h"

namespace trireme {
namespace {

struct Char {
  CharClass kind;
  uint32_t bytes;
};

inline Char char_at(std::string_view text, size_t at, const CharClass* classes) {
  uint8_t lead = uint8_t(text[at]);
  if (lead < 0x80) return {classes[lead], 1};
  CodePoint c = code_point_at(text, at);
  return {c.valid ? classes[c.code] : CharClass::other, c.bytes};
}

// End of the run of characters of one class from `at` on.
size_t run_end(std::string_view text, size_t at, CharClass kind, const CharClass* classes) {
  while (at < text.size()) {
    Char c = char_at(text, at, classes);
    if (c.kind != kind) break;
    at += c.bytes;
  }
  return at;
}

// Bytes of 's 't 're 've 'm 'll 'd at text[at] == '\''; 0 when it is none of them.
size_t contraction(std::string_view text, size_t at) {
  char a = at + 1 < text.size() ? text[at + 1] : '\0', b = at + 2 < text.size() ? text[at + 2] : '\0';
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
  return 0;
}

// \s+(?!\S)|\s+ : a run of spaces leaves its last one to the word that follows, unless it is the only one.
size_t spaces_end(std::string_view text, size_t begin, const CharClass* classes) {
  size_t last = begin, at = begin;
  while (at < text.size()) {
    Char c = char_at(text, at, classes);
    if (c.kind != CharClass::space) return last > begin ? last : at;
    last = at;
    at += c.bytes;
  }
  return at;
}

}  // namespace

size_t word_end(std::string_view text, size_t begin) {
  const CharClass* classes = char_classes();
  if (text[begin] == '\'') {
    if (size_t n = contraction(text, begin)) return begin + n;
  }
  Char c = char_at(text, begin, classes);
  if (c.kind != CharClass::space) return run_end(text, begin + c.bytes, c.kind, classes);
  if (text[begin] == ' ' && begin + 1 < text.size()) {
    Char next = char_at(text, begin + 1, classes);
    if (next.kind != CharClass::space) return run_end(text, begin + 1 + next.bytes, next.kind, classes);
  }
  return spaces_end(text, begin, classes);
}

}  // namespace trireme
