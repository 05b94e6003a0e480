// Ranks as processes that mpirun or srun started: they talk by MPI messages.
#pragma once
#include <memory>
#include <string>

#include "comm/process_world.h"

namespace trireme {

// This process among those of MPI_COMM_WORLD; one per process. MPI is finalised when it goes, unless a rank
// has failed: then others may never come to that.
// Collective over all processes. Needs MPI_THREAD_MULTIPLE: streams communicate beside one another. Where
// trireme was built without MPI (no_mpi.cc) it is a bad request.
std::unique_ptr<ProcessWorld> join_mpi_world();

// The library and its version, such as "Open MPI v4.1.4"; "" without MPI. May be called at any time.
std::string mpi_version();

}  // namespace trireme
