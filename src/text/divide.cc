#include "text/divide.h"

#include <algorithm>

#include "text/tokenizer.h"
#include "text/unicode.h"

namespace trireme {
namespace {

bool is_ascii_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
CharClass class_at(std::string_view text, size_t at) {
  CodePoint c = code_point_at(text, at);
  return c.valid ? char_classes()[c.code] : CharClass::other;
}
CharClass class_before(std::string_view text, size_t end) {
  for (size_t n = 1; n <= 4 && n <= end; n++)
    if (CodePoint c = code_point_at(text.substr(0, end), end - n); c.valid && c.bytes == n)
      return char_classes()[c.code];
  return CharClass::other;
}

// A token that is looked for in normalized text is not seen in the text itself: it must not be able to reach
// a place.
bool may_reach(const AddedToken& t) {
  return t.normalized &&
         (t.single_word || t.lstrip || t.rstrip || t.content.find_first_of(" \n") != std::string::npos);
}

}  // namespace

Divider::Divider(const Pipeline& p) {
  if (!p.normalizer.divisible(p.byte_level) || !p.pre_tokenizer.divisible()) return;
  at_spaces_ = p.byte_level ? p.pre_tokenizer.has_pattern() : p.pre_tokenizer.has_before();
  at_lines_ = p.byte_level && p.pre_tokenizer.has_pattern();
}

Divider::Divider(const Tokenizer& t) : Divider(t.pipeline()) {
  for (const AddedToken& token : t.added()) {
    if (may_reach(token)) at_spaces_ = at_lines_ = false;
    tokens_.add(token, token.content);
    longest_token_ = std::max(longest_token_, token.content.size());
  }
}

bool Divider::is_place(std::string_view text, size_t p) const {
  if (at_spaces_ && text[p] == ' ' && is_ascii_letter(text[p - 1]) && is_ascii_letter(text[p + 1]))
    return true;
  return at_lines_ && p >= 2 && text[p - 1] == '\n' && class_before(text, p - 1) != CharClass::space &&
         class_at(text, p) == CharClass::letter;
}

size_t Divider::last(std::string_view text) const {
  // What comes behind the end may make a token, or a character, of what is before it.
  const size_t behind = longest_token_ + 4;
  if (!possible() || text.size() <= behind) return 0;
  for (size_t p = text.size() - behind; p > 0; p--)
    if (is_place(text, p) && !tokens_.touches(text, p - 1, p)) return p;
  return 0;
}

}  // namespace trireme
