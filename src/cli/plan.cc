// trireme plan RUN.toml: what the run will cost, from the real step on meta.
#include "plan/forecast.h"

#include "cli/cli.h"
#include "spec/run_schedule.h"

namespace trireme::cli {

void add_plan(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("plan",
                         "forecasts memory, FLOPs and time of a run by running its real step without "
                         "data\nexample: trireme plan configs/run/demo.toml --set batch.micro=4");
  auto request = std::make_shared<RunRequest>();
  request->add_to(*verb);
  verb->callback([request] {
    RunSpec run = request->load();
    ClusterSpec cluster = cluster_of(run);
    Schedule schedule = schedule_of(run);
    Forecast f = forecast(run, schedule, cluster, rank_threads_of(run));
    fmt::print("{}\n", request->json ? to_json(run, f) : to_text(run, f, cluster));
  });
}

}  // namespace trireme::cli
