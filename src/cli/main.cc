// trireme VERB [RUN.toml] [--set key=value ...] [--json]
//
// Exit code: 0 done, 1 the run failed, 2 the request was wrong, 3 interrupted and resumable.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <new>

#include "cli/cli.h"
#include "spec/suggest.h"

namespace trireme::cli {
namespace {

// Verbs of the whole design (DESIGN.md section 5) that this version does not have.
constexpr std::array<std::string_view, 7> kLater = {"simulate", "distill", "tune",  "scale",
                                                    "score",    "report",  "doctor"};

void refuse_unknown_verb(const CLI::App& app, std::string_view given) {
  if (given.empty() || given[0] == '-') return;
  if (std::find(kLater.begin(), kLater.end(), given) != kLater.end())
    bad_request("the verb '{}' is not in this version; `trireme --help` lists those that are", given);
  std::vector<std::string> verbs;
  for (const CLI::App* v : app.get_subcommands([](const CLI::App*) { return true; }))
    verbs.push_back(v->get_name());
  if (std::find(verbs.begin(), verbs.end(), given) != verbs.end()) return;
  std::string near = suggest(given, verbs);
  bad_request("there is no verb '{}'{}; verbs are {}", given,
              near.empty() ? "" : fmt::format(", did you mean {}?", near), fmt::join(verbs, ", "));
}

int run(int argc, char** argv) {
  CLI::App app(
      "trireme trains large language models, and knows beforehand and proves afterwards what every byte and "
      "every second is spent on.\nStart with: trireme demo");
  app.name("trireme");
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error& e) {
    return fmt::format("trireme: {} (`trireme --help` and `trireme VERB --help` say more)\n", e.what());
  });
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
  if (argc < 2) bad_request("no verb given: start with `trireme demo`; `trireme --help` lists all verbs");
  refuse_unknown_verb(app, argv[1]);
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
