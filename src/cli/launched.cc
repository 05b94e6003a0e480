#include "cli/launched.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>

#include "comm/tcp/bootstrap.h"
#include "comm/tcp/secret.h"

namespace trireme::cli {
namespace {

std::optional<int> number_in(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const char* text = std::getenv(name); text && *text) return std::atoi(text);
  return {};
}

}  // namespace

// OpenMPI's mpirun; MPICH's; srun --mpi=pmix and pmi2. A batch script's own shell has SLURM_PROCID but none
// of these.
std::optional<Launched> launched() {
  const std::optional<int> rank = number_in({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"});
  if (!rank) return {};
  Launched l{.rank = *rank};
  l.size = number_in({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}).value_or(0);
  // Slurm says 2(x3),1 for nodes of 2, 2, 2 and 1.
  l.local = std::max(
      1,
      number_in({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE"}).value_or(1));
  return l;
}

std::optional<Launched> launched_without_mpi() {
  const auto environment = [](const std::string& name) -> std::optional<std::string> {
    const char* text = std::getenv(name.c_str());
    if (!text || !*text) return {};
    return text;
  };
  const std::optional<TcpOptions> o = placement_of(environment);
  if (!o) return {};
  TcpOptions with_secret = *o;
  if (o->size > 1) with_secret.secret = secret_of_job(environment);
  Launched l{.rank = o->rank, .size = o->size, .tcp = with_secret};
  l.local = std::max(1, number_in({"LOCAL_WORLD_SIZE", "SLURM_STEP_TASKS_PER_NODE"}).value_or(1));
  return l;
}

std::unique_ptr<ProcessWorld> join_launched(const Launched& started) {
  if (started.tcp) return join_tcp_world(*started.tcp);
  ::setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);  // else two ranks on a core stand still
  return join_mpi_world();
}

Error said_by_one(const Error& e, const std::optional<Launched>& job) {
  if (!job || job->size == 1) return e;
  std::unique_ptr<ProcessWorld> world;
  try {
    world = join_launched(*job);
  } catch (const Error&) {
    return e;
  }
  try {
    agreed(*world->factory(nullptr), [&]() -> bool { throw e; });
  } catch (const Error& said) {
    return said;
  }
  return e;
}

}  // namespace trireme::cli
