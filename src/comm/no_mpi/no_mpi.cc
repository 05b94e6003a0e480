// In place of comm/mpi where MPI was not there when trireme was built.
#include "comm/mpi/mpi_world.h"

namespace trireme {

std::unique_ptr<ProcessWorld> join_mpi_world() {
  bad_request(
      "train.comm = \"mpi\": this trireme was built without MPI; install libopenmpi-dev and openmpi-bin and "
      "build it again (cmake --preset release && make), or give \"thread\"");
}

std::string mpi_version() {
  return {};
}

}  // namespace trireme
