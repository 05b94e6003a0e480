// Tokens that stand outside the merges, and where they occur in a text.
#pragma once
#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

// A token that stands outside the merges: where its content occurs in text, it is one token.
struct AddedToken {
  std::string content;  // UTF-8
  int32_t id = 0;
  bool special = true;       // a control token: Specials::as_text does not recognise it
  bool normalized = false;   // looked for in the normalized text, after those that are not
  bool single_word = false;  // only where no word character is next to it
  bool lstrip = false;       // takes the spaces before it with it
  bool rstrip = false;       // takes the spaces after it with it
};

// What the content of a special token in text means: the token (the peer library's default), or just
// characters (what documents of others should be: a text cannot end itself).
enum class Specials { recognise, as_text };

// Finds added tokens from left to right, the longest where several begin at one place. As in the peer, a
// found token that does not count (special and read as text, or inside a word) is passed over as a whole.
class AddedTokenFinder {
 public:
  // `content` is what is looked for: the token's, or that normalized. An empty one is never found.
  void add(const AddedToken& token, std::string_view content);

  bool empty() const { return firsts_.empty(); }
  // Whether an occurrence of any token's content overlaps or touches the places from begin to end: its own
  // places, from its first byte to behind its last, meet them.
  bool touches(std::string_view text, size_t begin, size_t end) const;

  // Calls on_text(piece) and on_token(id) in the order of the text; pieces are never empty.
  template <class OnText, class OnToken>
  void cut(std::string_view text, Specials specials, OnText&& on_text, OnToken&& on_token) const {
    size_t begin = 0;
    for (size_t at = next_first(text, 0); at < text.size();) {
      const AddedToken* found = match(text.substr(at));
      if (!found) {
        at = next_first(text, at + 1);
        continue;
      }
      size_t end = at + found->content.size(), from = at, to = end;
      at = next_first(text, end);
      if (found->special && specials == Specials::as_text) continue;
      if (found->single_word && !stands_alone(text, from, to)) continue;
      if (found->lstrip) from = spaces_before(text, from, begin);
      if (found->rstrip) to = spaces_after(text, to);
      if (from > begin) on_text(text.substr(begin, from - begin));
      on_token(found->id);
      begin = to;
    }
    if (begin < text.size()) on_text(text.substr(begin));
  }

 private:
  struct Group {
    std::vector<AddedToken> tokens;  // the longest first
    std::bitset<256> seconds;        // second bytes that occur
    bool one_byte = false;
  };
  size_t next_first(std::string_view text, size_t at) const;
  const AddedToken* match(std::string_view rest) const {
    const Group& group = by_first_[uint8_t(rest[0])];
    if (!group.one_byte && (rest.size() < 2 || !group.seconds[uint8_t(rest[1])])) return nullptr;
    for (const AddedToken& t : group.tokens)
      if (rest.starts_with(t.content)) return &t;
    return nullptr;
  }
  static bool stands_alone(std::string_view text, size_t begin, size_t end);
  static size_t spaces_before(std::string_view text, size_t at, size_t least);
  static size_t spaces_after(std::string_view text, size_t at);

  std::array<Group, 256> by_first_;
  std::string firsts_;  // the first bytes that occur
  size_t longest_ = 0;
};

}  // namespace trireme
