// trireme config: every key of a run file.
#include <fmt/core.h>

#include "cli/cli.h"

namespace trireme::cli {

void add_config(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("config",
                                      "prints every key of a run file with its default, unit and "
                                      "meaning\nexample: trireme config > run.toml");
  verb->callback([] { print_text("{}", config_table()); });
}

}  // namespace trireme::cli
