// Python literals: templates of lm-evaluation-harness give lists as Python prints them.
#pragma once
#include <optional>
#include <string_view>

#include "base/json.h"

namespace trireme {

// Strings, integers, None, True, False, and lists and tuples of them, as ast.literal_eval reads them. Nothing
// if the text is anything else.
std::optional<nlohmann::ordered_json> parse_python_literal(std::string_view);

}  // namespace trireme
