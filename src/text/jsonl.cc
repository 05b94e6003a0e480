#include "text/jsonl.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "text/json_line.h"

namespace trireme {
namespace {

// Some keys of an object, for a user who looks for the one that holds the text.
std::string keys_of(const JsonLine& line) {
  constexpr size_t kMost = 8, kLongest = 64;
  std::string keys;
  for (size_t i = 0; i < line.keys.size(); i++) {
    if (i == kMost) return keys + ", ...";
    keys += fmt::format("{}{:?}{}", i ? ", " : "", line.keys[i].substr(0, kLongest),
                        line.keys[i].size() > kLongest ? "..." : "");
  }
  return keys.empty() ? "none" : keys;
}

}  // namespace

JsonLines::JsonLines(const fs::path& path, std::string key) : file_(path), key_(std::move(key)) {
  std::string_view all(reinterpret_cast<const char*>(file_.bytes().data()), file_.bytes().size());
  int64_t number = 1;
  for (size_t at = 0; at < all.size(); number++) {
    size_t end = std::min(all.find('\n', at), all.size());
    if (all.substr(at, end - at).find_first_not_of(" \t\r") != std::string_view::npos)
      lines_.push_back({at, end - at, number});
    at = end + 1;
  }
}

std::string JsonLines::read(int64_t document) const {
  const Line& line = lines_[size_t(document)];
  auto text = reinterpret_cast<const char*>(file_.bytes().data()) + line.begin;
  return json_text({text, line.bytes}, key_, fmt::format("{}, line {}", file_.path().string(), line.number));
}

std::string json_text(std::string_view line, const std::string& key, const std::string& where,
                      std::string_view what_to_do) {
  JsonLine read = read_json_line(line, key);
  if (!read.error.empty()) bad_request("{}: not a JSON object: {}", where, read.error);
  if (!read.has_key) bad_request("{}: no key {:?}; it has {}{}", where, key, keys_of(read), what_to_do);
  if (!read.is_string) bad_request("{}: {:?} is not a string", where, key);
  return std::move(read.text);
}

bool is_json_lines(const fs::path& path) {
  std::string name = path.extension().string();
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  return name == ".jsonl" || name == ".ndjson" || name == ".jl";
}

bool looks_like_json_lines(const fs::path& path, const std::string& key) {
  constexpr size_t kLongest = size_t(16) << 20;  // bytes of a line that is read to find out
  std::ifstream in(path, std::ios::binary);
  auto begins_object = [&] {
    while (in && (std::isspace(in.peek()) || in.peek() == 0xEF || in.peek() == 0xBB || in.peek() == 0xBF))
      in.get();
    return in && in.peek() == '{';
  };
  for (int lines = 0; lines < 2; lines++) {
    if (!begins_object()) return lines == 1 && in.peek() == EOF;
    std::string line;
    for (char c; line.size() < kLongest && in.get(c) && c != '\n';) line += c;
    const JsonLine read = read_json_line(line, key);
    if (!read.error.empty() || (!key.empty() && !read.is_string)) return false;
  }
  return true;
}

}  // namespace trireme
