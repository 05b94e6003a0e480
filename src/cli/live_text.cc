#include "cli/live_text.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "base/visible.h"

namespace trireme::cli {

LiveText::LiveText() : terminal_(::isatty(STDOUT_FILENO) == 1) {}

void LiveText::show(std::string_view text, bool last) {
  if (!terminal_) {
    std::fwrite(text.data(), 1, text.size(), stdout);
  } else {
    piece_ += text;
    const size_t whole = last ? piece_.size() : trireme::whole_characters(piece_);
    print_visible(stdout, std::string_view(piece_).substr(0, whole));
    piece_.erase(0, whole);
  }
  // The text is all that the command is for: that it was lost is an error.
  if (std::fflush(stdout) != 0 || std::ferror(stdout))
    throw std::system_error(errno, std::generic_category(), "cannot write to standard output");
}

}  // namespace trireme::cli
