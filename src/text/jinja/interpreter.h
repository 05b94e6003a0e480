// Renders a parsed template.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/functions.h"
#include "text/jinja/syntax.h"

namespace trireme::jinja {

struct Span {
  size_t begin = 0, end = 0;  // bytes
  bool operator==(const Span&) const = default;
};
struct Rendered {
  std::string text;
  std::vector<Span> generated;  // what {% generation %} blocks wrote, in order
};

// Runs the template once. `variables` are its global names; `now` is seconds since 1970, for strftime_now.
// Fails, naming file and line, at whatever the template cannot do, or does beyond the bounds of work.h.
Rendered render(const Body&, Entries variables, int64_t now, Work&);

}  // namespace trireme::jinja
