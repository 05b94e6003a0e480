// A description as text.
#include <algorithm>

#include "cli/describe.h"

namespace trireme::cli {
namespace {

std::string value_text(const std::string& key, const Description& v) {
  if (v.is_string()) return visible(v.get_ref<const std::string&>());
  if (v.is_number_integer() && key.ends_with("bytes")) return human_bytes(v.get<int64_t>());
  if (v.is_number_float()) return fmt::format("{:.4g}", v.get<double>());
  if (v.is_null()) return "-";
  if (!v.is_array()) return visible(v.dump(-1, ' ', false, Description::error_handler_t::replace));
  std::string s;
  for (const Description& e : v) s += (s.empty() ? "" : ", ") + value_text(key, e);
  return key == "shape" ? "[" + s + "]" : s;
}

bool is_table(const Description& v) {
  return v.is_array() && !v.empty() && v.front().is_object();
}

// Columns in the order in which keys first come; numbers to the right.
std::string table(const Description& rows, const std::string& indent) {
  std::vector<std::string> keys;
  for (const Description& row : rows)
    for (const auto& [k, v] : row.items())
      if (std::find(keys.begin(), keys.end(), k) == keys.end()) keys.push_back(k);
  std::vector<size_t> width;
  std::vector<bool> right;
  for (const std::string& k : keys) {
    width.push_back(visible(k).size());
    right.push_back(true);
    for (const Description& row : rows) {
      if (!row.contains(k)) continue;
      width.back() = std::max(width.back(), value_text(k, row[k]).size());
      if (!row[k].is_number()) right.back() = false;
    }
  }
  std::string s;
  auto line = [&](auto&& cell) {
    std::string l = indent;
    for (size_t i = 0; i < keys.size(); i++)
      l += right[i] ? fmt::format("{:>{}}  ", cell(keys[i]), width[i])
                    : fmt::format("{:<{}}  ", cell(keys[i]), width[i]);
    l.erase(l.find_last_not_of(' ') + 1);
    s += l + "\n";
  };
  line([](const std::string& k) { return visible(k); });
  for (const Description& row : rows)
    line([&](const std::string& k) { return row.contains(k) ? value_text(k, row[k]) : std::string(); });
  return s;
}

std::string body(const Description& d, const std::string& indent) {
  size_t width = 0;
  for (const auto& [k, v] : d.items())
    if (!v.is_object() && !is_table(v)) width = std::max(width, visible(k).size());
  std::string s;
  for (const auto& [k, v] : d.items()) {
    if (indent.size() == 2 && (k == "kind" || k == "path")) continue;
    if (v.is_object())
      s += indent + visible(k) + "\n" + body(v, indent + "  ");
    else if (is_table(v))
      s += indent + visible(k) + "\n" + table(v, indent + "  ");
    else
      s += fmt::format("{}{:<{}}  {}\n", indent, visible(k), width, value_text(k, v));
  }
  return s;
}

}  // namespace

std::string as_text(const Description& d) {
  return fmt::format("{} {}\n", d.value("kind", ""), visible(d.value("path", ""))) + body(d, "  ");
}

}  // namespace trireme::cli
