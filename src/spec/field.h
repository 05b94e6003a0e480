// What every spec tells a visitor about each of its keys. A spec is a plain struct with one member
//   template <class V> void visit(V& v)
// that calls v(key, field, unit, help[, rule]) for each field and v.section(key, struct, help) for each
// nested struct, and v.list(key, vector of structs, help) for tables of which there may be several
// ([[key]] in TOML; their keys are "key[1].field", from 1). Loading, --set, saving, listing, comparing and
// hashing are visitors over that one list. Fields are std::string, bool, int64_t, double, std::array<double,
// 2>, CountOrAuto, NumberOrDynamic, ExpertLoad, Texts, Numbers or Ramp.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

// What a value may be, beside its type.
struct Rule {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false, high_open = false;        // the bound itself is not allowed
  bool automatic = false;                          // a number may be "auto", which is kAutomatic
  std::span<const std::string_view> choices = {};  // of a string; empty = any
};
// The value of a number that is "auto": doubles until resolve(), whole numbers until a run file is read.
inline constexpr double kAutomatic = -1;
inline constexpr int64_t kAutomaticCount = -1;
constexpr Rule between(double low, double high) {
  return {.low = low, .high = high};
}
constexpr Rule at_least(double low) {
  return {.low = low};
}
constexpr Rule above(double low) {
  return {.low = low, .low_open = true};
}
constexpr Rule one_of(std::span<const std::string_view> choices) {
  return {.choices = choices};
}

// A count, or "auto": something else decides.
struct CountOrAuto {
  int64_t count = 0;
  bool automatic = false;
  bool operator==(const CountOrAuto&) const = default;
};

// A number, or "dynamic": it moves with the run.
struct NumberOrDynamic {
  double number = 0;
  bool dynamic = false;
  bool operator==(const NumberOrDynamic&) const = default;
};

// How full the fullest of several is over the mean: a number; "balanced", which is 1; or "untrained": what is
// expected before anything has learned to balance them.
struct ExpertLoad {
  ExpertLoad(double means = 1) : number(means) {}  // NOLINT: a number is one
  static ExpertLoad of_untrained() {
    ExpertLoad l;
    l.untrained = true;
    return l;
  }
  double number;  // 1 where it is expected
  bool untrained = false;
  bool operator==(const ExpertLoad&) const = default;
};

// One text, or a list of them: "a", ["a", "b"]. "" and [] are none.
struct Texts {
  Texts() = default;
  Texts(const std::string& one) {  // NOLINT: one text is a list of one
    if (!one.empty()) list.push_back(one);
  }
  Texts(const char* one) : Texts(std::string(one)) {}  // NOLINT
  static Texts of(std::vector<std::string> list) {
    Texts t;
    t.list = std::move(list);
    return t;
  }
  std::vector<std::string> list;

  bool empty() const { return list.empty(); }
  size_t size() const { return list.size(); }
  auto begin() const { return list.begin(); }
  auto end() const { return list.end(); }
  std::string first() const { return list.empty() ? std::string() : list.front(); }
  bool operator==(const Texts&) const = default;
};
using Numbers = std::vector<double>;

// Stages of a value that grows: so much up to and including a step.
struct RampStage {
  int64_t value = 0, until = 0;
  bool operator==(const RampStage&) const = default;
};
using Ramp = std::vector<RampStage>;

}  // namespace trireme
