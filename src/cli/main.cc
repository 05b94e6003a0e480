// trireme VERB [RUN.toml] [--set key=value ...] [--json]
//
// Exit code: 0 done, 1 the run failed, 2 the request was wrong, 3 interrupted and resumable.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <new>

#include "cli/cli.h"

namespace trireme::cli {
namespace {

// Verbs of the whole design (DESIGN.md section 5) that this version does not have.
constexpr std::array<std::string_view, 7> kLater = {"simulate", "distill", "tune",  "scale",
                                                    "score",    "report",  "doctor"};

int run(int argc, char** argv) {
  CLI::App app(
      "trireme trains large language models, and knows beforehand and proves afterwards what every byte and "
      "every second is spent on.\nStart with: trireme demo");
  app.name("trireme");
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  add_demo(app);
  add_tokenize(app);
  add_plan(app);
  add_train(app);
  add_eval(app);
  add_generate(app);
  add_bench(app);
  add_convert(app);
  add_inspect(app);
  add_config(app);
  if (argc > 1 && std::find(kLater.begin(), kLater.end(), argv[1]) != kLater.end())
    bad_request("the verb '{}' is not in this version; `trireme --help` lists those that are", argv[1]);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    int code = app.exit(e);
    return code == 0 ? 0 : 2;
  }
  return 0;
}

}  // namespace
}  // namespace trireme::cli

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF,
               1 << 16);  // lines keep their order with those of stderr, in a pipe too
  try {
    return trireme::cli::run(argc, argv);
  } catch (const trireme::Error& e) {
    fmt::print(stderr, "trireme: {}\n", e.what());
    return int(e.fault);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "trireme: the system has no more memory to give\n");
    return 1;
  } catch (const std::exception& e) {
    fmt::print(stderr, "trireme: internal error: {}\n", e.what());
    return 1;
  }
}
