// The options of subcommands that draw tokens.
#pragma once
#include <vector>

#include "cli/cli.h"
#include "generate/sampler.h"

namespace trireme::cli {

// Adds --temperature, --top-k, --top-p and --seed, with the values of `o` as defaults.
std::vector<CLI::Option*> add_sampling(CLI::App& verb, SampleOptions& o);

}  // namespace trireme::cli
