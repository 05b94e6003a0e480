#include "cli/use_model.h"

#include <cstdlib>

#include "cli/launched.h"
#include "comm/nccl/nccl_world.h"
#include "runtime/booking.h"
#include "spec/inference.h"
#include "train/launch.h"

namespace trireme::cli {
namespace {

using Work = std::function<void(LoadedModel&, const ModelMemory&)>;

// Returns this process's place among several that mpirun, srun or, for nccl, another launcher started.
std::optional<Launched> job_of(const RunSpec& run) {
  std::optional<Launched> job = launched();
  if (!job && run.train.comm == "nccl") job = launched_without_mpi();
  if (job && job->size == 1) job.reset();
  return job;
}

class DividedModel {
 public:
  DividedModel(const RunSpec& run, const fs::path& checkpoint, const BookModel& book, const Work& work)
      : run_(run), checkpoint_(checkpoint), work_(work), threads_(rank_threads_of(run)) {
    memory_.ranks = run.world();
    for (int k = 0; k < int(run.layout.pp); k++) {
      arenas_.push_back(book(run, threads_, k));
      memory_.all += arenas_.back() * (run.world() / run.layout.pp);
      memory_.most = std::max(memory_.most, arenas_.back());
    }
  }
  DeviceOptions device(int64_t ranks_here) const {
    return {.threads = threads_,
            .spin = ranks_here * (threads_ + 1) <= threads_of(RunSpec()),
            .sm90_attention = run_.train.attention == "sm90"};
  }
  void on_rank(Device& device, CommFactory& ranks, Pulse* pulse) const {
    CommSet comms(ranks, mesh_of(run_.layout));
    LoadedModel m;
    m.run = run_;
    const int pp_rank = comms.mesh().coord(comms.rank(), Axis::pp);
    m.runner = std::make_unique<StageRunner>(run_, RunMode::infer, device, arenas_[size_t(pp_rank)], &comms);
    m.runner->watch().pulse = pulse;
    try {
      load_weights(m, checkpoint_);
      if (comms.rank() > 0) return m.runner->follow();
      work_(m, memory_);
      m.runner->dismiss();
    } catch (const std::exception& e) {
      ranks.fail(e.what());  // before the runner ends, which waits for its streams
      throw;
    }
  }

 private:
  const RunSpec& run_;
  const fs::path& checkpoint_;
  const Work& work_;
  int threads_;
  std::vector<int64_t> arenas_;  // by pipeline rank
  ModelMemory memory_;
};

// Ranks above 0 have no result: their processes end here.
void use_as_process(RunSpec run, const fs::path& checkpoint, const BookModel& book, const Work& work,
                    const Launched& job) {
  std::unique_ptr<ProcessWorld> world = join_launched(job);
  std::unique_ptr<CommFactory> ranks = world->factory(nullptr);
  agreed(*ranks, [&] {
    if (run.train.comm == "thread")
      bad_request("train.comm = \"thread\": the launcher started {} processes; give \"{}\"", world->size(),
                  run.train.device == "cuda" ? "nccl" : "mpi");
    if (run.world() != world->size())
      bad_request("--layout: {} ranks, and processes started: {}; they must be equal", run.world(),
                  world->size());
    return true;
  });
  if (run.train.comm == "nccl") {
    const int version = agreed(*ranks, [] { return open_nccl(); });
    agreed(*ranks, [&] { return check_same_nccl(ranks->control(), version), true; });
    world =
        make_nccl_world(std::move(world), {.library = NcclOptions().library, .meet_s = run.train.timeout});
  }
  if (run.train.threads == 0) run.train.threads = std::max(1, threads_of(run) / world->local_ranks());
  const auto model =
      agreed(*ranks, [&] { return std::make_unique<DividedModel>(run, checkpoint, book, work); });
  DeviceOptions device = model->device(world->local_ranks());
  device.index = world->local_rank();
  run_watched_process(run, device, {}, {}, *world,
                      [&](Device& own, CommFactory& all, Pulse* pulse) { model->on_rank(own, all, pulse); });
  if (world->rank() == 0) return;
  ranks.reset();
  world.reset();
  std::exit(0);
}

void use_divided(const RunSpec& run, const fs::path& checkpoint, const BookModel& book, const Work& work) {
  if (const std::optional<Launched> job = job_of(run))
    return use_as_process(run, checkpoint, book, work, *job);
  if (run.train.comm == "nccl")
    bad_request(
        "train.comm = \"nccl\": ranks are processes, one a GPU: start {} with mpirun or srun, or give "
        "train.comm = \"thread\"",
        run.world());
  const DividedModel model(run, checkpoint, book, work);
  run_watched_threads(
      run, model.device(run.world()), {}, {},
      [&](Device& device, CommFactory& ranks, Pulse* pulse) { model.on_rank(device, ranks, pulse); });
}

}  // namespace

CLI::Option* add_layout(CLI::App& verb, std::string& layout) {
  return verb.add_option("--layout", layout,
                         "divides the model over ranks: degrees of tp, pp, cp and ep, such as tp=2,pp=2, or "
                         "run,\nthe degrees of the "
                         "run's own layout (default: one rank has the whole model)");
}

void use_model(const UsedRun& used, const std::string& layout, const BookModel& book, const Work& work) {
  const InferenceLayout asked = inference_layout(layout, used.run);
  if (asked.ranks() > 1) return use_divided(inference_run(used.run, asked), used.checkpoint, book, work);
  const int64_t arena = book(used.run, threads_of(used.run), kAlone);
  LoadedModel m = load_model(used.run, arena, used.checkpoint);
  work(m, {.ranks = 1, .all = arena, .most = arena});
}

}  // namespace trireme::cli
