// Visitors over specs without templates: a walk hands every field to a function as one of a few types.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "spec/field.h"

namespace trireme {

using FieldRef = std::variant<std::string*, bool*, int64_t*, double*, std::array<double, 2>*, CountOrAuto*,
                              NumberOrDynamic*, ExpertLoad*, Texts*, Numbers*, Ramp*>;

struct FieldInfo {
  std::string key;  // "model.rope_scaling.factor"
  std::string_view unit, help;
  Rule rule;
};

class Walk {
 public:
  using OnField = std::function<void(const FieldInfo&, FieldRef)>;
  using OnSection = std::function<void(const std::string& key, std::string_view help)>;
  // How many tables a list is to have that has `size` now.
  using OnList = std::function<size_t(const std::string& key, size_t size)>;
  Walk(OnField on_field, OnSection on_section, OnList on_list = nullptr)
      : on_field_(std::move(on_field)), on_section_(std::move(on_section)), on_list_(std::move(on_list)) {}

  template <class T>
  void operator()(std::string_view key, T& field, std::string_view unit, std::string_view help,
                  const Rule& rule = {}) {
    on_field_({prefix_ + std::string(key), unit, help, rule}, &field);
  }
  template <class S>
  void section(std::string_view key, S& spec, std::string_view help) {
    std::string outer = prefix_;
    on_section_(prefix_ + std::string(key), help);
    prefix_ += std::string(key) + ".";
    spec.visit(*this);
    prefix_ = outer;
  }
  template <class S>
  void list(std::string_view key, std::vector<S>& items, std::string_view help) {
    if (on_list_) items.resize(on_list_(prefix_ + std::string(key), items.size()));
    for (size_t i = 0; i < items.size(); i++)
      section(std::string(key) + "[" + std::to_string(i + 1) + "]", items[i], help);
  }

 private:
  OnField on_field_;
  OnSection on_section_;
  OnList on_list_;
  std::string prefix_;
};

// A field as text.
struct FieldText {
  std::string key, value;  // value in TOML
  std::string_view type, unit, help;
  Rule rule;
  std::string_view section_help;  // of the outermost section
};

template <class S>
std::vector<FieldText> fields_of(S spec);  // a copy: visiting wants a mutable spec

FieldText field_text(const FieldInfo&, FieldRef, std::string_view section_help);

template <class S>
std::vector<FieldText> fields_of(S spec) {
  std::vector<FieldText> out;
  std::string_view outermost;
  Walk walk([&](const FieldInfo& info, FieldRef ref) { out.push_back(field_text(info, ref, outermost)); },
            [&](const std::string& key, std::string_view help) {
              if (key.find('.') == std::string::npos) outermost = help;
            });
  spec.visit(walk);
  return out;
}

// "one of a, b" | "a whole number from 1 to 8" | "a string" ...: what a field may be.
std::string allowed(const FieldText&);
std::string allowed(std::string_view type, const Rule&);

}  // namespace trireme
