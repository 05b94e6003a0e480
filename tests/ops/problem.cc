#include "problem.h"

#include <charconv>
#include <sstream>

#include "base/error.h"

namespace trireme::harness {
namespace {

template <class N>
N parse(const std::string& text, const std::string& key, const std::string& place, std::string_view kind) {
  N value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    bad_request("{}: {} = '{}' must be {}", place, key, text, kind);
  return value;
}

std::map<std::string, std::string> parse_keys(std::istringstream& words, const std::string& place) {
  std::map<std::string, std::string> keys;
  for (std::string w; words >> w;) {
    size_t eq = w.find('=');
    if (eq == std::string::npos || eq == 0) bad_request("{}: '{}' must be key=value", place, w);
    if (!keys.emplace(w.substr(0, eq), w.substr(eq + 1)).second)
      bad_request("{}: key '{}' is given twice", place, w.substr(0, eq));
  }
  return keys;
}

}  // namespace

const std::string* Problem::find(const std::string& key) const {
  auto it = keys_.find(key);
  if (it == keys_.end()) return nullptr;
  read_.insert(key);
  return &it->second;
}
bool Problem::has(const std::string& key) const {
  return find(key) != nullptr;
}
int64_t Problem::size(const std::string& key) const {
  const std::string* text = find(key);
  if (!text) bad_request("{}: {} needs {}=<whole number>", place, op, key);
  return parse<int64_t>(*text, key, place, "a whole number");
}
int64_t Problem::size(const std::string& key, int64_t otherwise) const {
  return find(key) ? size(key) : otherwise;
}
double Problem::number(const std::string& key, double otherwise) const {
  const std::string* text = find(key);
  return text ? parse<double>(*text, key, place, "a number") : otherwise;
}
std::string Problem::word(const std::string& key, const std::string& otherwise) const {
  const std::string* text = find(key);
  return text ? *text : otherwise;
}
DType Problem::dtype(const std::string& key) const {
  return dtype_from_name(word(key, "f32"));
}

bool Problem::is_for(std::string_view mode) const {
  std::istringstream modes(word("for", "test"));
  for (std::string m; std::getline(modes, m, ',');) {
    if (m != "test" && m != "grad" && m != "perf")
      bad_request("{}: for = '{}' must list test, grad and perf", place, m);
    if (m == mode) return true;
  }
  return false;
}

void Problem::refuse_unread() const {
  for (auto& [key, value] : keys_)
    if (!read_.contains(key) && key != "for" && key != "nmse" && key != "worst")
      bad_request("{}: {} has no key '{}'", place, op, key);
}

ProblemFile::ProblemFile(const fs::path& path, std::string_view device) : path_(path) {
  std::istringstream text(read_text(path));
  int number = 0;
  for (std::string line; std::getline(text, line);) {
    number++;
    line = line.substr(0, line.find('#'));
    std::istringstream words(line);
    std::string first;
    if (!(words >> first)) continue;
    std::string place = fmt::format("{}:{}", path.filename().string(), number);
    if (first != "bound") {
      problems_.emplace_back(first, line.substr(0, line.find_last_not_of(" \t\r") + 1), place,
                             parse_keys(words, place));
      continue;
    }
    std::string dtype;
    if (!(words >> dtype)) bad_request("{}: a bound line names an element type first", place);
    dtype_from_name(dtype);
    Problem b("bound", line, place, parse_keys(words, place));
    std::pair<std::string, std::string> key(dtype, b.word("out", ""));
    if (!b.has("nmse") || !b.has("worst")) bad_request("{}: a bound line needs nmse= and worst=", place);
    const Bound bound{b.number("nmse", 0), b.number("worst", 0)};
    const std::string only = b.word("device", "");
    b.refuse_unread();
    if (device.starts_with(only)) bounds_[key] = bound;  // a later line that names the device wins
  }
}

Bound ProblemFile::bound(const Problem& p, const std::string& out, DType dtype) const {
  std::string type(name_of(dtype));
  auto it = bounds_.find({type, out});
  if (it == bounds_.end()) it = bounds_.find({type, ""});
  bool given = p.has("nmse") && p.has("worst");
  if (it == bounds_.end() && !given)
    bad_request("{}: no bound line for output '{}' of type {}", path_.filename().string(), out, type);
  Bound b = it == bounds_.end() ? Bound{} : it->second;
  return {p.number("nmse", b.nmse), p.number("worst", b.worst)};
}

}  // namespace trireme::harness
