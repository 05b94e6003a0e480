// The options that a folder's results follow from, kept in the folder.
#pragma once
#include "base/file.h"
#include "base/json.h"

namespace trireme::cli {

// Compares the options with those that `file` has. A value of null matches all.
// Throws Error (request), naming `folder`, the option and both values, where one differs, or `file` if it is
// damaged.
void refuse_other_options(const std::string& folder, const fs::path& file, const nlohmann::ordered_json& now);

// The hash of a file's bytes, as 16 hexadecimal digits.
std::string digest_of(const fs::path&);

}  // namespace trireme::cli
