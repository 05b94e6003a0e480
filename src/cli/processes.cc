// train.comm = "mpi" and "nccl": this process is one rank of several, which mpirun, srun or another launcher
// started.
#include <algorithm>
#include <optional>

#include "cli/auto_layout.h"
#include "cli/cli.h"
#include "cli/training.h"
#include "comm/nccl/nccl_world.h"

namespace trireme::cli {
namespace {

RunSpec load(const RunRequest& request, const ProcessWorld& world, PrecisionSpec& asked) {
  RunSpec run = request.as_asked();
  const std::string kept = take_rules_of_before(run, request);
  if (!kept.empty() && world.rank() == 0 && !request.json) say("{}\n", kept);
  asked = run.precision;
  run = resolved_here(run);
  const int n = world.size();
  if (run.train.comm == "thread")
    bad_request("train.comm = \"{}\": the launcher started {} process{}, and that has one: give \"{}\"",
                run.train.comm, n, n == 1 ? "" : "es", run.train.device == "cuda" ? "nccl" : "mpi");
  if (run.world() != n)
    bad_request(
        "layout: world = {} (pp {} x dp {} x cp {} x tp {}), and processes started: {}; they must be equal",
        run.world(), run.layout.pp, run.layout.dp, run.layout.cp, run.layout.tp, n);
  if (run.train.threads == 0) run.train.threads = std::max(1, threads_of(run) / world.local_ranks());
  return run;
}

// A schedule of one's own, or one that is searched: rank 0's for all.
void take_own_schedule(CommFactory& ranks, RunSpec& run, const ClusterSpec& cluster) {
  if (!has_own_schedule(run.layout)) return;
  const bool first = ranks.rank() == 0;
  const std::string mine = agreed(ranks, [&] {
    if (first) find_own_schedule(run, cluster);
    return first ? to_text(*run.own_schedule.actions) : std::string();
  });
  const std::string text = broadcast_text(ranks.control(), mine);
  agreed(ranks, [&] {
    if (!first) set_own_schedule(run, parse_schedule(text), "rank 0's schedule");
    return true;
  });
}

}  // namespace

std::unique_ptr<TrainingJob> join_training(const RunRequest& request, const Launched& started) {
  if (started.size == 1 && request.load().train.comm == "thread") return nullptr;
  wait_without_spinning(started.local);
  auto job = std::make_unique<TrainingJob>();
  job->world = join_launched(started);
  const std::unique_ptr<CommFactory> ranks = job->world->factory(nullptr);
  job->run = agreed(*ranks, [&] { return load(request, *job->world, job->asked); });
  if (job->run.train.comm == "nccl") {  // `ranks` stays the host's
    const int version = agreed(*ranks, [] { return open_nccl(); });
    agreed(*ranks, [&] { return check_same_nccl(ranks->control(), version), true; });
    // Not before a rank that is late is named: its slow step, file or save may take train.timeout.
    const NcclOptions usual;
    const double meet_s = std::max(usual.meet_s, job->run.train.timeout);
    job->world = make_nccl_world(std::move(job->world), {.library = usual.library, .meet_s = meet_s});
  }
  // Rank 0's machine is measured, where that was not done before, for all.
  const std::string cluster =
      agreed(*ranks, [&] { return ranks->rank() == 0 ? save_cluster(cluster_of(job->run)) : std::string(); });
  const std::string of_first = broadcast_text(ranks->control(), cluster);
  const ClusterSpec machine = agreed(*ranks, [&] { return parse_cluster(of_first, "rank 0's cluster"); });
  take_own_schedule(*ranks, job->run, machine);
  // Kernels' scratch depends on threads, of which machines may give their ranks more or fewer.
  const int threads = int(agree_max(ranks->control(), rank_threads_of(job->run)));
  job->setup = agreed(*ranks, [&] {
    job->run = choose_recompute(job->run, machine, threads);
    return prepare_training(job->run, job->asked, machine, job->world->local_ranks());
  });
  job->setup.device.index = job->world->local_rank();
  return job;
}

}  // namespace trireme::cli
