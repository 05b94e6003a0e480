// How deep a JSON text nests, before anybody builds it: libraries free and print nested values by recursion.
#pragma once
#include <string_view>

#include "base/json.h"

namespace trireme {

// The most brackets and braces open at once, outside of strings. Holds for any bytes.
int json_depth(std::string_view text);

// More than any file that we read needs.
inline constexpr int kMostJsonDepth = 64;

// The value of a text; discarded: it is no JSON, or nests deeper than that.
nlohmann::json shallow_json(std::string_view text);

}  // namespace trireme
