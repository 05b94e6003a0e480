// Split patterns that have no matcher of their own (split.h).
//
// regex_parse.h reads the pattern. The sets of characters that it names divide all code points into a few
// kinds: two characters are of one kind if every set has both or neither. A text becomes one byte per
// character, its kind, and PCRE2 matches the pattern on these bytes. So PCRE2 only does what all backtracking
// engines do alike: sequences, alternatives, repeats and look-around. It needs no Unicode tables.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

class RegexSplit {
 public:
  // `what` names the pattern in messages. bad_request: it does not compile, or regex_parse.h does not accept
  // it.
  RegexSplit(std::string pattern, std::string_view what);
  ~RegexSplit();
  RegexSplit(const RegexSplit&) = delete;

  const std::string& pattern() const { return pattern_; }

  // Writes the ends of the pieces: matches, and the text between them. An empty match ends a piece, too. A
  // byte that is not UTF-8 matches as U+FFFD does. bad_request if a match needs more than kMatchLimit steps.
  // Any thread.
  void pieces(std::string_view text, std::vector<size_t>& ends) const;

  static constexpr uint32_t kMatchLimit = 10'000'000;

 private:
  struct Compiled;

  std::string pattern_;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace trireme
