// The lines of a task file, plain or compressed by gzip.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "base/file.h"

namespace trireme {

// The bytes of a file. A gzip file is decompressed. bad_request if it is damaged or above 1 GiB.
std::string read_text_or_gzip(const fs::path&);

// Calls `line` for each line that is not blank; `where` is "FILE, line N" for messages.
void each_line(std::string_view text, const std::string& file,
               const std::function<void(std::string_view line, const std::string& where)>&);

}  // namespace trireme
