// Fields of a measured run as its file has them: absent, or of the kind that they are to be.
#pragma once
#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "base/printable.h"

namespace trireme {

using RowJson = nlohmann::json;

// A field that is no such thing: the file is not what it says.
struct WrongField {
  std::string message;
};

// One row's fields, by "group.key". null is as good as absent.
class RowFields {
 public:
  RowFields(const RowJson& row, std::string where) : row_(row), where_(std::move(where)) {}
  const RowJson* find(std::string_view group, std::string_view key) const {
    const RowJson* in = &row_;
    if (!group.empty()) {
      const auto g = row_.find(group);
      if (g == row_.end() || g->is_null()) return nullptr;
      if (!g->is_object()) wrong(group, "", *g, "an object");
      in = &*g;
    }
    const auto v = in->find(key);
    return v == in->end() || v->is_null() ? nullptr : &*v;
  }
  std::optional<int64_t> whole(std::string_view group, std::string_view key) const {
    const RowJson* v = find(group, key);
    if (!v) return std::nullopt;
    if (v->is_string() || v->is_boolean()) return std::nullopt;  // "3072->15360": said in words, no number
    if (!v->is_number()) wrong(group, key, *v, "a whole number");
    const auto x = v->get<double>();
    if (!(x >= 0 && x <= 9e15) || x != std::floor(x)) wrong(group, key, *v, "a whole number from 0 to 9e15");
    return int64_t(x);
  }
  std::optional<double> number(std::string_view group, std::string_view key) const {
    const RowJson* v = find(group, key);
    if (!v) return std::nullopt;
    if (!v->is_number()) wrong(group, key, *v, "a number");
    const auto x = v->get<double>();
    if (!(x > 0 && x < 1e30)) wrong(group, key, *v, "a number above 0 and below 1e30");
    return x;
  }
  std::string text(std::string_view group, std::string_view key) const {
    const RowJson* v = find(group, key);
    if (!v) return "";
    if (v->is_number_integer()) return std::to_string(v->get<int64_t>());
    if (!v->is_string()) wrong(group, key, *v, "text");
    return v->get<std::string>();
  }
  bool flag(std::string_view group, std::string_view key) const {
    const RowJson* v = find(group, key);
    return v && v->is_boolean() && v->get<bool>();
  }

 private:
  [[noreturn]] void wrong(std::string_view group, std::string_view key, const RowJson& v,
                          std::string_view right) const {
    std::string shown = v.dump(-1, ' ', false, RowJson::error_handler_t::replace);
    if (shown.size() > 60) shown = shown.substr(0, 57) + "...";
    throw WrongField{fmt::format("{}: {}{}{} is {}; right is {}", where_, group,
                                 key.empty() || group.empty() ? "" : ".", key, printable(shown), right)};
  }
  const RowJson& row_;
  std::string where_;
};

}  // namespace trireme
