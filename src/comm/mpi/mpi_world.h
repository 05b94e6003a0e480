// Ranks as processes that mpirun or srun started: they talk by MPI messages.
#pragma once
#include <memory>

#include "base/error.h"
#include "comm/comm_set.h"
#include "comm/options.h"
#include "comm/watch/watchdog.h"

namespace trireme {

// This process among those of MPI_COMM_WORLD; one per process. MPI is finalised when it goes, unless a rank
// has failed: then others may never come to that.
class MpiWorld {
 public:
  virtual ~MpiWorld() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_ranks() const = 0;  // that share this one's processor cores, itself among them
  // As ThreadWorld::factory; of this process's rank. Collective over all ranks.
  virtual std::unique_ptr<CommFactory> factory(Device*, const CommOptions& = {}) = 0;

  // Where the ranks see each other's beats, for this process's watchdog. Collective over all ranks.
  virtual std::unique_ptr<BeatBoard> board() = 0;

  // This rank leaves with an error. The others are told why, and one rank says it: of those that failed by
  // themselves within a third of a second the lowest. What comes back is the line, which names the rank, and
  // empty where another rank says it; its fault is the same on all ranks.
  virtual Error end_failed(const Error&) = 0;
};

// Collective over all processes. Needs MPI_THREAD_MULTIPLE: streams communicate beside one another. Where
// trireme was built without MPI (no_mpi.cc) it is a bad request.
std::unique_ptr<MpiWorld> join_mpi_world();

}  // namespace trireme
