// trireme VERB [RUN.toml] [--set key=value ...] [--json]
//
// Exit code: 0 done, 1 the run failed, 2 the request was wrong, 3 interrupted and resumable, 4 the
// environment failed (disk, memory, network, launcher).
#include <signal.h>

#include <cerrno>
#include <cstdio>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error_lines.h"
#include "base/mapping_table.h"
#include "base/say.h"
#include "cli/cli.h"
#include "cli/launched.h"
#include "cli/usage.h"
#include "device/cpu/cpu_device.h"

namespace trireme::cli {
namespace {

int run(int argc, char** argv) {
  CLI::App app(
      "trireme trains large language models, and knows beforehand and proves afterwards what every byte and "
      "every second is spent on.\nStart with: trireme demo");
  app.name("trireme");
  app.require_subcommand(1);
  app.set_version_flag("--version", "trireme " TRIREME_VERSION);
  add_demo(app);
  add_tokenize(app);
  add_plan(app);
  add_search(app);
  add_estimate(app);
  add_simulate(app);
  add_train(app);
  add_tune(app);
  add_eval(app);
  add_generate(app);
  add_chat(app);
  add_bench(app);
  add_convert(app);
  add_score(app);
  add_distill(app);
  add_scale(app);
  add_report(app);
  add_inspect(app);
  add_config(app);
  add_doctor(app);
  add_completion(app);
  add_help(app);
  app.footer(
      "Exit code: 0 done, 1 the run failed, 2 the request was wrong, 3 interrupted and resumable, 4 the "
      "environment failed (disk, memory, network, host)");
  try {
    if (argc < 2) bad_request("no verb given: start with `trireme demo`; `trireme --help` lists all verbs");
    refuse_unknown_verb(app, argv[1]);
    refuse_moved_option({argv + 1, argv + argc});
  } catch (const Error& e) {
    throw said_by_one(e);
  }
  cpu::require_processor();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    throw said_by_one(Error(usage_problem(app, e), Fault::request));
  }
  return 0;
}

}  // namespace
}  // namespace trireme::cli

int main(int argc, char** argv) {
  trireme::prepare_standard_streams();
  std::setvbuf(stdout, nullptr, _IOLBF,
               1 << 16);  // lines keep their order with those of stderr, in a pipe too
  trireme::report_shrunk_files();
  if (argc > 1) trireme::cli::spin_briefly(argv[1]);
  try {
    return trireme::cli::run(argc, argv);
  } catch (const trireme::ErrorLines& e) {
    trireme::say("trireme: {}\n", e.what());
    return int(e.fault);
  } catch (const trireme::Error& e) {
    if (*e.what() != '\0')  // of several processes one says it
      trireme::say("trireme: {}\n", trireme::visible(e.what()));
    return int(e.fault);
  } catch (const std::bad_alloc&) {
    trireme::say("trireme: the system has no more memory to give\n");
    return int(trireme::Fault::environment);
  } catch (const std::system_error& e) {
    const int code =
        e.code().category() == std::generic_category() || e.code().category() == std::system_category()
            ? e.code().value()
            : 0;
    if (code == EPIPE) {  // the reader of a result has gone: end as programs do that do not handle it
      ::signal(SIGPIPE, SIG_DFL);
      ::raise(SIGPIPE);
    }
    std::string what = e.what();  // fmt's name of the stream says nothing to a user
    if (const std::string_view file = "cannot write to file"; what.starts_with(file))
      what.replace(0, file.size(), "cannot write to standard output (full, or closed)");
    trireme::say("trireme: {}\n", trireme::visible(what));
    return int(trireme::fault_of_errno(code, trireme::Fault::run));
  } catch (const std::exception& e) {
    trireme::say("trireme: internal error: {}\n", trireme::visible(e.what()));
    return 1;
  }
}
