// YAML files as JSON values, with the types that Python's yaml.safe_load gives.
#pragma once
#include "base/file.h"
#include "base/json.h"

namespace trireme {

// A tag that is not of YAML's core, such as !function, becomes {"!tag": "!function utils.f"}. Files named by
// a top-level key "include" are read first, relative to the file; the file's own keys replace theirs.
// bad_request names the file and the line.
nlohmann::ordered_json read_yaml(const fs::path&);
nlohmann::ordered_json parse_yaml(const std::string& text, const std::string& name);

}  // namespace trireme
