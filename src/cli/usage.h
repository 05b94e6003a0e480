// What the program says to a command line that it cannot take: one line, as all its errors.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::cli {

// "train: no option --stop-afer, did you mean --stop-after?; `trireme train --help` lists its options"
std::string usage_problem(const CLI::App&, const CLI::ParseError&);

// Throws bad_request that names the subcommand that an option of `plan` has moved to. arguments: from the
// subcommand on.
void refuse_moved_option(const std::vector<std::string_view>& arguments);
// bad_request with what may have been meant, unless `given` is a verb.
void refuse_unknown_verb(const CLI::App&, std::string_view given);

void add_help(CLI::App&);  // the verb `help`

}  // namespace trireme::cli
