// Run files as text.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "spec/run_spec.h"
#include "testing.h"

namespace trireme::testing {

inline RunSpec parse(std::string_view toml, std::vector<std::string> sets = {}) {
  return parse_run(toml, "run.toml", sets);
}
// The text of its refusal; empty when there is none.
inline std::string wrong(std::string_view toml, std::vector<std::string> sets = {}) {
  return error_of([&] { parse(toml, sets); });
}

}  // namespace trireme::testing
