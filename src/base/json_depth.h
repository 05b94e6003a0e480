// How deep a JSON text nests, before anybody builds it: libraries free and print nested values by recursion.
#pragma once
#include <string_view>

#include "base/json.h"

namespace trireme {

// The most brackets and braces open at once, outside of strings. Holds for any bytes.
int json_depth(std::string_view text);

// More than any file that we read needs.
inline constexpr int kMostJsonDepth = 64;

// Parses a text. Returns a discarded value if it is not JSON or nests deeper than kMostJsonDepth.
nlohmann::json shallow_json(std::string_view text);

}  // namespace trireme
