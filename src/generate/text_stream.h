// From the bytes of tokens to text that may be shown: up to the first stop string, whole characters at a
// time.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

// What is shown never has to be taken back: the start of what may become a stop string waits until it is
// known, and so does the start of a UTF-8 character. A stop string may begin in one token and end in another.
class TextStream {
 public:
  // Stop strings, none of them empty.
  explicit TextStream(std::vector<std::string> stops);

  // More bytes; returns what may be shown now. After a stop string came, nothing is added.
  std::string_view push(std::string_view bytes);
  // The end of the text: what was held back and is part of it (nothing after a stop string).
  std::string_view finish();

  // A stop string is complete. The text ends before it; of several, the one whose last byte comes first, and
  // of those that end together the longest: where tokens begin and end makes no difference.
  bool stopped() const { return stopped_; }
  const std::string& text() const { return text_; }  // all of it, what is held back included

 private:
  bool find_stop(size_t from);
  size_t may_show() const;
  std::string_view show(size_t end);

  std::vector<std::string> stops_;
  std::string text_;
  size_t shown_ = 0;
  bool stopped_ = false;
};

}  // namespace trireme
