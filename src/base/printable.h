// Text that came out of a file somebody else may have written.
#pragma once
#include <string>
#include <string_view>

namespace trireme {

// For an error message: one line, printable ASCII (other bytes as \xNN), at most 100 characters of it.
std::string printable(std::string_view untrusted);

}  // namespace trireme
