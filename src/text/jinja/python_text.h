// Values as Python writes them: str(), repr() and json.dumps().
#pragma once
#include <optional>
#include <string>

#include "text/jinja/value.h"

namespace trireme::jinja {

std::string real_text(double);  // repr() of a float
std::string str_of(const Value&, Work&);
std::string repr_of(const Value&, Work&);

struct JsonStyle {
  bool ascii = false;  // other characters as \uXXXX
  bool sorted = false;
  std::optional<std::string> indent = {};  // indentation per level; none: one line
  std::string item = ", ", key = ": ";     // separators
};
std::string json_of(const Value&, const JsonStyle&, Work&);

}  // namespace trireme::jinja
