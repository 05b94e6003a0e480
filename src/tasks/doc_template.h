// A field of a task file that makes a text or a value from a document.
#pragma once
#include <string>

#include "base/json.h"

namespace trireme {

// Jinja, with the settings of lm-evaluation-harness: blocks keep the line ends around them, and the end of
// the template stays. The keys of `doc` are the variables, and the use of another name is an error
// (StrictUndefined). bad_request begins with `where`.
std::string render_doc(const std::string& source, const nlohmann::ordered_json& doc,
                       const std::string& where);

}  // namespace trireme
