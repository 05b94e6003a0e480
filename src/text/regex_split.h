// Split patterns that have no matcher of their own (split.h), through PCRE2.
//
// What differs from the peer's engine (Oniguruma) is refused by name: classes inside classes and their
// intersections. Classes are those of PCRE2's Unicode version (Debian 12: 14), so characters newer than it
// may split differently.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

class RegexSplit {
 public:
  // bad_request when it does not compile or means another thing to the peer; `what` names it in messages.
  RegexSplit(std::string pattern, std::string_view what);
  ~RegexSplit();
  RegexSplit(const RegexSplit&) = delete;

  const std::string& pattern() const { return pattern_; }

  // The ends of the pieces: matches, and what lies between them. Empty matches cut nothing. Bytes that are no
  // UTF-8 match as U+FFFD does. bad_request when the pattern takes more than kMatchLimit steps for one match.
  // Any thread.
  void pieces(std::string_view text, std::vector<size_t>& ends) const;

  static constexpr uint32_t kMatchLimit = 10'000'000;

 private:
  struct Compiled;
  void match_all(std::string_view text, std::vector<size_t>& ends) const;

  std::string pattern_;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace trireme
