// External text (names in files, paths, values), made safe for a terminal. See also printable.h.
#pragma once
#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace trireme {

// For one line of a message or a cell of a table: UTF-8 stays unchanged. Escaped as \n, \t, \xNN or \uNNNN
// are control characters, bytes that are not UTF-8, and characters that reorder or break lines. JSON stays
// JSON: it has no raw byte below 0x20, and \uNNNN means the same in it.
std::string visible(std::string_view untrusted);
// The same for text of several lines: line ends and tabs stay.
std::string visible_lines(std::string_view text);

// Bytes of `text` up to a character at its end that lacks bytes.
size_t whole_characters(std::string_view text);

// Prints visible_lines() of the formatted text: results and tables of a command. Messages: say.h.
// Throws std::system_error if the text cannot be written.
void print_visible(std::FILE*, std::string_view text);
template <class... A>
void print_text(std::FILE* out, fmt::format_string<A...> f, A&&... a) {
  print_visible(out, fmt::format(f, std::forward<A>(a)...));
}
template <class... A>
void print_text(fmt::format_string<A...> f, A&&... a) {
  print_visible(stdout, fmt::format(f, std::forward<A>(a)...));
}

}  // namespace trireme
