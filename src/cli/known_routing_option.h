// --routing FILE: what a run's routers chose, for the verbs that book its steps.
#pragma once
#include "cli/cli.h"

namespace trireme::cli {

struct KnownRoutingRequest {
  std::string file;
  int64_t step = 0;  // 0: the last
  // The options; the first asks for it.
  CLI::Option* add_to(CLI::App& verb);
  void give_to(RunSpec&) const;  // no effect where none was asked for
};

}  // namespace trireme::cli
