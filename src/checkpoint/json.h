// Reading JSON that somebody else may have written.
#pragma once
#include <string_view>

#include "base/json.h"

namespace trireme {

// One Error naming the file and the byte for text that is not JSON, is longer than max_bytes, or nests deeper
// than 32 levels (so that memory stays within a small factor of the text).
nlohmann::json parse_json(std::string_view text, std::string_view file, size_t max_bytes);

}  // namespace trireme
