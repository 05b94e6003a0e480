// The kind of a file, by its first bytes.
#pragma once
#include <string_view>

#include "base/file.h"

namespace trireme {

// "compressed by gzip", "a Parquet table", "UTF-16 text" and so on; "" for what has no mark at its beginning,
// such as UTF-8 text and raw numbers.
std::string_view marked_kind(std::string_view first_bytes);
// How to make a text file of such a file, for a message; "" if there is no short answer.
std::string_view how_to_read(std::string_view kind);
// Throws a request error that names the kind and the way out, if the file begins with such a mark.
void refuse_marked(const fs::path&, std::string_view first_bytes);

}  // namespace trireme
