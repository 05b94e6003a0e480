// Text of a model on standard output, as it grows.
#pragma once
#include <string>
#include <string_view>

namespace trireme::cli {

// A terminal would obey control bytes of the text, so it gets them in a visible form; a file or pipe gets the
// exact bytes.
class LiveText {
 public:
  LiveText();
  // A character may come in several pieces; `last` shows what is there of it. Throws std::system_error if the
  // text cannot be written.
  void show(std::string_view text, bool last = false);

 private:
  bool terminal_;
  std::string piece_;  // bytes of a character that is not complete yet
};

}  // namespace trireme::cli
