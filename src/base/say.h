// Text for the user of a run. Output that cannot be written (a full disk, a closed terminal, a pipe without
// reader) is dropped: no work ends for a lost line.
#pragma once
#include <fmt/core.h>

#include <cstdio>
#include <string_view>
#include <utility>

#include "base/visible.h"

namespace trireme {

// Writes the text and flushes. Never throws; drops what cannot be written.
void put_text(std::FILE*, std::string_view) noexcept;

// Formats to standard error; control bytes are escaped.
template <class... A>
void say(fmt::format_string<A...> f, A&&... a) {
  put_text(stderr, visible_lines(fmt::format(f, std::forward<A>(a)...)));
}

// The same to standard output, for text that is not the result of the command.
template <class... A>
void tell(fmt::format_string<A...> f, A&&... a) {
  put_text(stdout, visible_lines(fmt::format(f, std::forward<A>(a)...)));
}

// Prepares the standard streams of a process, before anything else is opened:
// - A closed stream is opened: input as /dev/null, output as /dev/full. Otherwise the next file that the
// process
//   opens would take its number, and lines for the user would be written into that file.
// - A write to a pipe without reader, or beyond a limit on file sizes, fails instead of ending the process.
void prepare_standard_streams();

}  // namespace trireme
