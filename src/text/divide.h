// Where a long text may be divided so that its parts have the ids that they have in the whole: files larger
// than memory are encoded piece by piece.
//
// Two kinds of places p are known to be safe for the split patterns of split.h, which look at nothing before
// a word:
//   - before a space between two ASCII letters. The letters' run ends there whether a space or nothing
//   follows, and
//     " x" begins a word in all patterns.
//   - behind a line end between a character that is no space and a letter. The line end is a word, or ends
//   one, whether
//     a letter or nothing follows (two of them would not be: \s+(?!\S) sees what follows).
// NFC joins nothing across either. Added tokens must not overlap or touch the place.
#pragma once
#include <cstddef>
#include <string_view>

#include "text/added_tokens.h"
#include "text/pipeline.h"

namespace trireme {

class Tokenizer;

class Divider {
 public:
  explicit Divider(const Pipeline&);   // words only, no tokens: for counting
  explicit Divider(const Tokenizer&);  // ids

  // Whether there are such places at all: not with split patterns that only PCRE2 knows.
  bool possible() const { return at_spaces_ || at_lines_; }
  // The last of them; 0 = none. The text may go on behind its end.
  size_t last(std::string_view text) const;

 private:
  bool is_place(std::string_view text, size_t p) const;

  bool at_spaces_ = false, at_lines_ = false;
  AddedTokenFinder tokens_;
  size_t longest_token_ = 0;
};

}  // namespace trireme
