// Tokens that stand outside the merges, and where they occur in a text.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

// A token that stands outside the merges: where its content occurs in text, it is one token.
struct AddedToken {
  std::string content;  // UTF-8
  int32_t id = 0;
  bool special = true;      // a control token: Specials::as_text does not recognise it
  bool normalized = false;  // looked for after those that are not
};

// What the content of a special token in text means: the token (the peer library's default), or just
// characters (what documents of others should be: a text cannot end itself).
enum class Specials { recognise, as_text };

// Finds added tokens from left to right, the longest where several begin at one place.
class AddedTokenFinder {
 public:
  void add(const AddedToken& token) {
    auto& group = by_first_[uint8_t(token.content[0])];
    if (group.empty()) firsts_ += token.content[0];
    auto at = group.begin();
    while (at != group.end() && at->content.size() >= token.content.size()) ++at;
    group.insert(at, token);
  }

  // Calls on_text(piece) and on_token(id) in the order of the text; pieces are never empty.
  template <class OnText, class OnToken>
  void cut(std::string_view text, Specials specials, OnText&& on_text, OnToken&& on_token) const {
    size_t begin = 0;
    for (size_t at = next_first(text, 0); at < text.size();) {
      const AddedToken* found = match(text.substr(at), specials);
      if (!found) {
        at = next_first(text, at + 1);
        continue;
      }
      if (at > begin) on_text(text.substr(begin, at - begin));
      on_token(found->id);
      begin = at + found->content.size();
      at = next_first(text, begin);
    }
    if (begin < text.size()) on_text(text.substr(begin));
  }

 private:
  size_t next_first(std::string_view text, size_t at) const {
    if (at >= text.size() || firsts_.empty()) return text.size();
    if (firsts_.size() == 1) {
      auto p = static_cast<const char*>(std::memchr(text.data() + at, firsts_[0], text.size() - at));
      return p ? size_t(p - text.data()) : text.size();
    }
    while (at < text.size() && by_first_[uint8_t(text[at])].empty()) at++;
    return at;
  }
  const AddedToken* match(std::string_view rest, Specials specials) const {
    for (const AddedToken& t : by_first_[uint8_t(rest[0])])
      if (!(t.special && specials == Specials::as_text) && rest.starts_with(t.content)) return &t;
    return nullptr;
  }

  std::array<std::vector<AddedToken>, 256> by_first_;  // the longest first
  std::string firsts_;                                 // the first bytes that occur
};

}  // namespace trireme
