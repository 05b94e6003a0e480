// Conditions on the layouts of a search: `--require tp=8`, and what a framework supports
// (search/framework.h).
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "forecast/search_layout.h"

namespace trireme {

// The place in the search's nested loops at which a key has its value.
enum class RequirementLevel { division, microbatch, schedule, sharding, order, offload };

// One condition "KEY OP VALUE[,VALUE...]", or "CONDITION if CONDITION".
struct Requirement {
  enum class Is { one_of, none_of, less, at_most, more, at_least };
  std::string text;    // as given: "pp<=4"
  std::string source;  // option that gave it: "--require", "--as megatron"
  std::string key;
  Is is = Is::one_of;
  std::vector<std::string> values;
  std::vector<Requirement> only_if;  // none or one
  RequirementLevel level = RequirementLevel::division;

  bool allows(const SearchLayout&) const;
  bool allows_value(const std::string&) const;  // the key's; only_if is not read
};

// Throws bad_request: an unknown key or value; the message names the allowed ones.
Requirement parse_requirement(std::string_view text, std::string source = "--require");
// Throws bad_request: no value of a key is allowed by two of these conditions of one option.
void refuse_contradiction(const std::vector<Requirement>&);
// The keys that parse_requirement() knows.
std::vector<std::string> requirement_keys();
// The layout's value of a key: "8", "1f1b".
std::string value_of(std::string_view key, const SearchLayout&);

// Values of each requirement's key that otherwise allowed layouts have and the requirement rejects.
using RejectedValues = std::vector<std::set<std::string>>;
// Returns whether the layout meets all requirements of this level. Records the value of the first that it
// does not meet. Requires: `rejected` is empty or has one entry per requirement.
bool meets(const std::vector<Requirement>&, RequirementLevel, const SearchLayout&, RejectedValues& rejected);
// One line: which requirement no layout meets, and the values that it could have.
std::string unmet_text(const std::vector<Requirement>&, const RejectedValues&);

}  // namespace trireme
