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

bool is_line_end(char c) {
  return c == '\r' || c == '\n';
}

// The same contractions in either case. Folded, U+017F (long s) is an s as well.
size_t contraction_any_case(std::string_view text, size_t at) {
  if (at + 2 < text.size() && text[at + 1] == '\xC5' && text[at + 2] == '\xBF') return 3;
  char lower[3] = {'\'', '\0', '\0'};
  for (size_t i = 1; i < 3 && at + i < text.size(); i++) {
    char c = text[at + i];
    lower[i] = c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  }
  return contraction({lower, 3}, 0);
}

// \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last line end of a run of spaces; without one as above.
size_t lines_end(std::string_view text, size_t begin, const CharClass* classes) {
  size_t after_line = begin, last = begin, at = begin;
  while (at < text.size()) {
    Char c = char_at(text, at, classes);
    if (c.kind != CharClass::space) break;
    last = at;
    at += c.bytes;
    if (is_line_end(text[last])) after_line = at;
  }
  if (after_line > begin) return after_line;
  return at == text.size() || last == begin ? at : last;
}

// Llama 3 and Qwen 2 differ in how many numbers make a word.
size_t modern_word_end(std::string_view text, size_t begin, int numbers, const CharClass* classes) {
  if (text[begin] == '\'') {
    if (size_t n = contraction_any_case(text, begin)) return begin + n;
  }
  const Char c = char_at(text, begin, classes);
  size_t at = begin + c.bytes;
  if (c.kind == CharClass::letter) return run_end(text, at, c.kind, classes);
  if (c.kind == CharClass::number) {
    for (int n = 1; n < numbers && at < text.size(); n++) {
      Char next = char_at(text, at, classes);
      if (next.kind != CharClass::number) break;
      at += next.bytes;
    }
    return at;
  }
  if (at < text.size() && !is_line_end(text[begin])) {
    const Char next = char_at(text, at, classes);
    if (next.kind == CharClass::letter) return run_end(text, at + next.bytes, next.kind, classes);
    if (text[begin] == ' ' && next.kind == CharClass::other) at += next.bytes;
  }
  if (c.kind == CharClass::space && at == begin + c.bytes) return lines_end(text, begin, classes);
  at = run_end(text, at, CharClass::other, classes);
  while (at < text.size() && is_line_end(text[at])) at++;
  return at;
}

}  // namespace

std::optional<SplitPattern> known_pattern(std::string_view regex) {
  if (regex == kGpt2Pattern) return SplitPattern::gpt2;
  if (regex == kLlama3Pattern) return SplitPattern::llama3;
  if (regex == kQwen2Pattern) return SplitPattern::qwen2;
  return std::nullopt;
}

size_t word_end(SplitPattern pattern, std::string_view text, size_t begin) {
  switch (pattern) {
    case SplitPattern::gpt2:
      return word_end(text, begin);
    case SplitPattern::llama3:
      return modern_word_end(text, begin, 3, char_classes());
    case SplitPattern::qwen2:
      return modern_word_end(text, begin, 1, char_classes());
  }
  return text.size();
}

size_t digits_end(std::string_view text, size_t begin, bool each) {
  const CharClass* classes = char_classes();
  Char c = char_at(text, begin, classes);
  size_t at = begin + c.bytes;
  if (c.kind == CharClass::number) return each ? at : run_end(text, at, c.kind, classes);
  for (; at < text.size(); at += c.bytes) {
    c = char_at(text, at, classes);
    if (c.kind == CharClass::number) break;
  }
  return at;
}

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
