// In place of the subcommands that need threads, kernels of CPUs or MPI, where trireme plans only
// (TRIREME_META_ONLY).
#include <string_view>

#include "cli/cli.h"
#include "cli/launched.h"

namespace trireme::cli {
namespace {

// A subcommand that takes any arguments and refuses them.
void add_refusal(CLI::App& app, const char* name) {
  CLI::App* verb =
      app.add_subcommand(name, "not in this build (TRIREME_META_ONLY): it needs threads or CPU kernels");
  verb->allow_extras();
  verb->callback([name] {
    bad_request(
        "{}: this trireme was built with TRIREME_META_ONLY=ON, without threads, OpenMP, oneDNN and MPI; it "
        "has plan, "
        "search, estimate, simulate, score, config, completion and help",
        name);
  });
}

[[noreturn]] void refuse_measuring() {
  bad_request(
      "this trireme was built with TRIREME_META_ONLY=ON and measures no machine; name a cluster file: "
      "cluster.file = \"configs/cluster/h100-sxm-8.toml\"");
}

}  // namespace

#define TRIREME_REFUSE(name)       \
  void add_##name(CLI::App& app) { \
    add_refusal(app, #name);       \
  }
TRIREME_REFUSE(demo)
TRIREME_REFUSE(tokenize)
TRIREME_REFUSE(train)
TRIREME_REFUSE(tune)
TRIREME_REFUSE(eval)
TRIREME_REFUSE(generate)
TRIREME_REFUSE(chat)
TRIREME_REFUSE(bench)
TRIREME_REFUSE(convert)
TRIREME_REFUSE(distill)
TRIREME_REFUSE(scale)
TRIREME_REFUSE(report)
TRIREME_REFUSE(inspect)
TRIREME_REFUSE(doctor)
#undef TRIREME_REFUSE

ClusterSpec measure_this_machine(int, const Deadline&) {
  refuse_measuring();
}
ClusterSpec gpu_of_this_machine(const std::string&, bool) {
  refuse_measuring();
}
Calibration calibrate_this_machine(int, int, bool, const Deadline&) {
  refuse_measuring();
}
void spin_briefly(std::string_view) {}

std::optional<Launched> launched() {
  return {};
}
Error said_by_one(const Error& e, const std::optional<Launched>&) {
  return e;
}

}  // namespace trireme::cli
