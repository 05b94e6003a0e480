// trireme inspect RUN.toml --program: what each kind of rank does in a step, operation by operation.
#pragma once
#include "cli/cli.h"

namespace trireme::cli {

// Prints to stdout. Errors: as for a run that is to be trained.
void print_programs(const RunRequest&);

}  // namespace trireme::cli
