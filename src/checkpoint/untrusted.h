// Text that came out of a file somebody else may have written.
#pragma once
#include <string_view>

#include "base/printable.h"

namespace trireme {

// May it name a file inside one folder? No separators, no "." or "..", no control bytes, 1 to 200 bytes.
bool is_plain_file_name(std::string_view);

}  // namespace trireme
