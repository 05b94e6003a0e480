// Reading one object of a config.json.
#pragma once
#include <fmt/format.h>

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "spec/hf_harmless.h"
#include "spec/suggest.h"
#include "spec/toml.h"

namespace trireme {

inline std::string shown_json(const nlohmann::json& j) {
  if (j.is_string()) return shown(j.get_ref<const std::string&>());
  if (j.is_object()) return "an object";
  if (j.is_array()) return "a list";
  return j.dump(-1, ' ', true);
}

// One object of the config: reads keys with defaults, remembers which were read, and collects problems.
class HfObject {
 public:
  using Json = nlohmann::json;
  HfObject(const Json& json, std::string prefix, std::vector<std::string>& problems)
      : json_(json), prefix_(std::move(prefix)), problems_(problems) {}

  // null counts as not given, as in transformers.
  const Json* find(std::string_view key) {
    seen_.insert(std::string(key));
    auto it = json_.find(std::string(key));
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }
  void problem(std::string_view key, const std::string& text) {
    problems_.push_back(fmt::format("{}{}: {}", prefix_, shown_key(key), text));
  }

  int64_t whole(std::string_view key, std::optional<int64_t> otherwise, double high, int64_t low = 1) {
    const Json* j = find(key);
    if (!j) {
      if (!otherwise) problem(key, fmt::format("missing; give a whole number from {} to {:.0f}", low, high));
      return otherwise.value_or(low);
    }
    bool fits = j->is_number_integer() && j->get<double>() >= double(low) && j->get<double>() <= high;
    if (!fits)
      problem(key, fmt::format("{} is not a whole number from {} to {:.0f}", shown_json(*j), low, high));
    return fits ? j->get<int64_t>() : low;
  }
  double number(std::string_view key, std::optional<double> otherwise, double low, double high) {
    const Json* j = find(key);
    if (!j) {
      if (!otherwise) problem(key, fmt::format("missing; give a number from {} to {}", low, high));
      return otherwise.value_or(low);
    }
    bool fits = j->is_number() && j->get<double>() >= low && j->get<double>() <= high;
    if (!fits) problem(key, fmt::format("{} is not a number from {} to {}", shown_json(*j), low, high));
    return fits ? j->get<double>() : low;
  }
  bool flag(std::string_view key, bool otherwise) {
    const Json* j = find(key);
    if (j && !j->is_boolean()) problem(key, fmt::format("{} is neither true nor false", shown_json(*j)));
    return j && j->is_boolean() ? j->get<bool>() : otherwise;
  }
  std::string text(std::string_view key, std::string_view otherwise) {
    const Json* j = find(key);
    if (j && !j->is_string()) problem(key, fmt::format("{} is not a string", shown_json(*j)));
    return j && j->is_string() ? j->get<std::string>() : std::string(otherwise);
  }
  bool given(std::string_view key) const { return json_.contains(std::string(key)); }  // null too
  // No problem yet: what a second key contradicts is then the value that was given.
  bool clean() const { return problems_.empty(); }
  template <class List>
  void ignore(const List& keys) {
    for (std::string_view k : keys) seen_.insert(std::string(k));
  }
  void refuse_others() {
    constexpr int kMost = 50;
    int others = 0;
    for (const auto& [key, value] : json_.items()) {
      if (seen_.count(key) || value.is_null() || is_harmless_hf_key(key)) continue;
      if (++others <= kMost)
        problem(key,
                fmt::format("{} is not supported: it may change what the model computes", shown_json(value)));
    }
    if (others > kMost) problems_.push_back(fmt::format("{}and {} more keys", prefix_, others - kMost));
  }

 private:
  const Json& json_;
  std::string prefix_;
  std::vector<std::string>& problems_;
  std::set<std::string> seen_;
};

}  // namespace trireme
