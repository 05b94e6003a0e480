// trireme_ops: one harness for all operations of a device. README.md says how to add an op.
#include <CLI/CLI.hpp>

#include "modes.h"

int main(int argc, char** argv) {
  using namespace trireme::harness;
  std::setvbuf(stdout, nullptr, _IOLBF,
               0);  // who ends it, or watches it through a pipe, has the lines until then
  CLI::App app(
      "Tests and measures the operations of src/device/ops.h.\nExample: trireme_ops test --op matmul "
      "--threads 1,2");
  Options options;
  options.problems = TRIREME_OPS_PROBLEMS;
  app.add_option("--device", options.device,
                 "cpu, meta, cuda, cuda-sm90: with attention's kernels for sm_90a; cuda-emulated, "
                 "cuda-emulated-sm90: theirs on this processor")
      ->capture_default_str();
  app.add_option("--op", options.ops, "only these ops, comma separated")->delimiter(',');
  app.add_option("--except", options.except, "not these ops")->delimiter(',');
  app.add_option("--filter", options.filter, "only problem lines that contain this text");
  app.add_option("--one-of", options.one_of, "of an op's problem lines every so manieth, from the first on")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--threads", options.threads, "thread counts, comma separated")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--problems", options.problems, "folder of <op>.txt, or one file of any ops")
      ->capture_default_str();
  app.add_flag("--require-8-bit", options.require_8_bit,
               "fp8_matmul: a line that no 8-bit kernel takes is a failure");
  app.add_flag("--verbose", options.verbose, "print every output's distance");
  app.require_subcommand(1)->fallthrough();
  app.add_subcommand("test", "against a naive double-precision reference; bits, fences, scratch");
  app.add_subcommand("grad", "finite differences");
  app.add_subcommand("perf", "GFLOP/s, GB/s and the ratio to what the machine can do; medians")
      ->add_flag("--in-turn", options.in_turn,
                 "lines take turns, launch by launch, each beside the first in the same minute");
  app.add_subcommand("plan", "memory and work of each line; nothing runs");
  app.add_subcommand("support", "what the device takes");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  try {
    std::string mode = app.get_subcommands()[0]->get_name();
    int failures = mode == "test"   ? run_test(options)
                   : mode == "grad" ? run_grad(options)
                   : mode == "perf" ? run_perf(options)
                   : mode == "plan" ? run_plan(options)
                                    : run_support(options);
    return failures > 0 ? 1 : 0;
  } catch (const trireme::Error& e) {
    fmt::print(stderr, "trireme_ops: {}\n", e.what());
    return int(e.fault);
  }
}
