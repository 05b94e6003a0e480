#include "text/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "text/normal_form.h"
#include "text/unicode.h"

namespace trireme {
namespace {

// Where the character that ends at `end` begins; end > 0. A byte that ends no well-formed character is one
// itself.
size_t char_before(std::string_view text, size_t end) {
  for (size_t n = 1; n <= 4 && n <= end; n++)
    if (CodePoint c = code_point_at(text.substr(0, end), end - n); c.valid && c.bytes == n) return end - n;
  return end - 1;
}
bool is_word_at(std::string_view text, size_t at) {
  CodePoint c = code_point_at(text, at);
  return c.valid && is_word_char(c.code);
}
bool is_space_at(std::string_view text, size_t at) {
  CodePoint c = code_point_at(text, at);
  return c.valid && char_classes()[c.code] == CharClass::space;
}

}  // namespace

void AddedTokenFinder::add(const AddedToken& token, std::string_view content) {
  if (content.empty()) return;
  Group& group = by_first_[uint8_t(content[0])];
  if (group.tokens.empty()) firsts_ += content[0];
  if (content.size() == 1)
    group.one_byte = true;
  else
    group.seconds.set(uint8_t(content[1]));
  longest_ = std::max(longest_, content.size());
  auto at = group.tokens.begin();
  while (at != group.tokens.end() && at->content.size() >= content.size()) ++at;
  at = group.tokens.insert(at, token);
  at->content = content;
}

size_t AddedTokenFinder::next_first(std::string_view text, size_t at) const {
  if (at >= text.size() || firsts_.empty()) return text.size();
  if (firsts_.size() == 1) {
    auto p = static_cast<const char*>(std::memchr(text.data() + at, firsts_[0], text.size() - at));
    return p ? size_t(p - text.data()) : text.size();
  }
  while (at < text.size() && by_first_[uint8_t(text[at])].tokens.empty()) at++;
  return at;
}

bool AddedTokenFinder::touches(std::string_view text, size_t begin, size_t end) const {
  size_t from = begin > longest_ ? begin - longest_ : 0;
  for (size_t at = next_first(text, from); at <= end && at < text.size(); at = next_first(text, at + 1))
    for (const AddedToken& t : by_first_[uint8_t(text[at])].tokens)
      if (at + t.content.size() >= begin && text.substr(at).starts_with(t.content)) return true;
  return false;
}

bool AddedTokenFinder::stands_alone(std::string_view text, size_t begin, size_t end) {
  return (begin == 0 || !is_word_at(text, char_before(text, begin))) &&
         (end == text.size() || !is_word_at(text, end));
}

size_t AddedTokenFinder::spaces_before(std::string_view text, size_t at, size_t least) {
  while (at > least) {
    size_t before = char_before(text, at);
    if (before < least || !is_space_at(text, before)) break;
    at = before;
  }
  return at;
}

size_t AddedTokenFinder::spaces_after(std::string_view text, size_t at) {
  while (at < text.size() && is_space_at(text, at)) at += code_point_at(text, at).bytes;
  return at;
}

}  // namespace trireme
