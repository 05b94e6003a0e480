#include "tasks/text_lines.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <memory>

#include "base/error.h"

namespace trireme {

std::string read_text_or_gzip(const fs::path& path) {
  constexpr size_t kMost = 1ull << 30;
  std::string text = read_text(path);  // with its messages for what cannot be opened
  if (!text.starts_with("\x1f\x8b")) return text;
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(::gzopen(path.c_str(), "rb"), &::gzclose);
  if (!file) bad_request("{}: cannot be opened again", path.string());
  text.clear();
  std::string buffer(1 << 16, '\0');
  int n = 0;
  while ((n = ::gzread(file.get(), buffer.data(), unsigned(buffer.size()))) > 0) {
    text.append(buffer, 0, size_t(n));
    if (text.size() > kMost) bad_request("{}: larger than 1 GiB when decompressed", path.string());
  }
  int error = Z_OK;
  const char* why = ::gzerror(file.get(), &error);
  if (n < 0 || error != Z_OK) bad_request("{}: damaged gzip file: {}", path.string(), why);
  return text;
}

void each_line(std::string_view text, const std::string& file,
               const std::function<void(std::string_view, const std::string&)>& line) {
  int64_t number = 1;
  for (size_t at = 0; at < text.size(); number++) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view one = text.substr(at, end - at);
    at = end + 1;
    if (one.find_first_not_of(" \t\r") != std::string_view::npos)
      line(one, fmt::format("{}, line {}", file, number));
  }
}

}  // namespace trireme
