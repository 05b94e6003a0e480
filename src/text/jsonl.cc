#include "text/jsonl.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace trireme {
namespace {

// Some of an object's, for somebody who looks for the one that holds the text.
std::string keys_of(const nlohmann::json& object) {
  constexpr size_t kMost = 8, kLongest = 64;
  std::string keys;
  size_t n = 0;
  for (const auto& [key, value] : object.items()) {
    if (n++ == kMost) return keys + ", ...";
    keys += fmt::format("{}{:?}{}", keys.empty() ? "" : ", ", key.substr(0, kLongest),
                        key.size() > kLongest ? "..." : "");
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
  auto value = nlohmann::json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) bad_request("{}: not a JSON object", where);
  auto it = value.find(key);
  if (it == value.end()) bad_request("{}: no key {:?}; it has {}{}", where, key, keys_of(value), what_to_do);
  if (!it->is_string()) bad_request("{}: {:?} is not a string", where, key);
  return std::move(it->get_ref<std::string&>());
}

bool is_json_lines(const fs::path& path) {
  return path.extension() == ".jsonl" || path.extension() == ".ndjson";
}

}  // namespace trireme
