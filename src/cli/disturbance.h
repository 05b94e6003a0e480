// --slow and --slow-link: what is slower in a step than the rest, as `simulate` and `plan` take it.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/cli.h"
#include "sim/world.h"

namespace trireme::cli {

struct DisturbanceOptions {
  std::vector<std::string> slow, slow_links;
  void add_to(CLI::App& verb);
  bool any() const { return !slow.empty() || !slow_links.empty(); }
  Disturbance parsed() const;
};

// "17=1.3": a whole number and what is said of it. option, right: for errors.
std::pair<int, double> pair_of(const std::string& text, char between, std::string_view option,
                               std::string_view right);

}  // namespace trireme::cli
