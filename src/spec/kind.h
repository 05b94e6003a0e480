// Which of the two specs a TOML file is, for a word where one stands in the other's place.
#pragma once
#include <vector>

#include "spec/toml.h"

namespace trireme {

enum class SpecKind { run, cluster, neither };
SpecKind kind_of_spec(const std::vector<TomlEntry>&);  // by keys that the other has not

}  // namespace trireme
