#include "spec/walk.h"

#include <fmt/format.h>

#include <cmath>

#include "spec/suggest.h"
#include "spec/toml.h"

namespace trireme {
namespace {

struct Type {
  std::string_view operator()(std::string*) const { return "a string"; }
  std::string_view operator()(bool*) const { return "true or false"; }
  std::string_view operator()(int64_t*) const { return "a whole number"; }
  std::string_view operator()(double*) const { return "a number"; }
  std::string_view operator()(std::array<double, 2>*) const { return "a list of two numbers"; }
  std::string_view operator()(CountOrAuto*) const { return "a whole number, or \"auto\""; }
  std::string_view operator()(NumberOrDynamic*) const { return "\"dynamic\", or a number"; }
  std::string_view operator()(ExpertLoad*) const { return "\"balanced\", \"untrained\", or a number"; }
  std::string_view operator()(Texts*) const { return "a string, or a list of strings"; }
  std::string_view operator()(Numbers*) const { return "a list of numbers"; }
  std::string_view operator()(Ramp*) const {
    return "a list of pairs of whole numbers from 1, as [[8, 100], [16, 200]]";
  }
};
struct Value {
  std::string operator()(std::string* s) const { return toml_string(*s); }
  std::string operator()(bool* b) const { return *b ? "true" : "false"; }
  std::string operator()(int64_t* i) const { return fmt::format("{}", *i); }
  std::string operator()(double* d) const { return toml_number(*d); }
  std::string operator()(std::array<double, 2>* a) const {
    return fmt::format("[{}, {}]", toml_number((*a)[0]), toml_number((*a)[1]));
  }
  std::string operator()(CountOrAuto* c) const {
    return c->automatic ? "\"auto\"" : fmt::format("{}", c->count);
  }
  std::string operator()(NumberOrDynamic* n) const {
    return n->dynamic ? "\"dynamic\"" : toml_number(n->number);
  }
  std::string operator()(ExpertLoad* l) const {
    return l->untrained ? "\"untrained\"" : toml_number(l->number);
  }
  std::string operator()(Texts* t) const {
    if (t->size() <= 1) return toml_string(t->first());
    std::string out;
    for (const std::string& s : *t) out += (out.empty() ? "" : ", ") + toml_string(s);
    return "[" + out + "]";
  }
  std::string operator()(Numbers* n) const {
    std::string out;
    for (double d : *n) out += (out.empty() ? "" : ", ") + toml_number(d);
    return "[" + out + "]";
  }
  std::string operator()(Ramp* r) const {
    std::string out;
    for (const RampStage& s : *r) out += fmt::format("{}[{}, {}]", out.empty() ? "" : ", ", s.value, s.until);
    return "[" + out + "]";
  }
};

}  // namespace

FieldText field_text(const FieldInfo& info, FieldRef ref, std::string_view section_help) {
  double** number = info.rule.automatic ? std::get_if<double*>(&ref) : nullptr;
  int64_t** count = info.rule.automatic ? std::get_if<int64_t*>(&ref) : nullptr;
  const bool automatic = (number && **number == kAutomatic) || (count && **count == kAutomaticCount);
  return {.key = info.key,
          .value = automatic ? "\"auto\"" : std::visit(Value{}, ref),
          .type = number  ? std::string_view("\"auto\", or a number")
                  : count ? std::string_view("\"auto\", or a whole number")
                          : std::visit(Type{}, ref),
          .unit = info.unit,
          .help = info.help,
          .rule = info.rule,
          .section_help = section_help};
}

std::string allowed(std::string_view type, const Rule& rule) {
  if (!rule.choices.empty()) return "one of " + joined(rule.choices);
  std::string out(type);
  // Whole bounds are written without exponent: 2147483647, not 2.1e9.
  auto number = [](double d) {
    return d == std::floor(d) && std::abs(d) < 1e13 ? fmt::format("{:.0f}", d) : fmt::format("{}", d);
  };
  bool low = std::isfinite(rule.low), high = std::isfinite(rule.high);
  if (low) out += rule.low_open ? " above " + number(rule.low) : " from " + number(rule.low);
  if (low && high) out += " to";
  if (high)
    out += rule.high_open ? " below " + number(rule.high) : (low ? " " : " up to ") + number(rule.high);
  return out;
}
std::string allowed(const FieldText& f) {
  return allowed(f.type, f.rule);
}

}  // namespace trireme
