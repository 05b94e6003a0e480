// What launchers without MPI tell a process of its place: torchrun, Kubernetes operators (RANK, WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT), srun (SLURM_PROCID and others).
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "comm/tcp/tcp_world.h"

namespace trireme {

// A variable of the environment, nothing where it is not set or empty.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

// RANK goes before Slurm's; MASTER_ADDR and MASTER_PORT before what follows from Slurm's list of nodes and
// job number. Nothing where neither says a place: a batch script's own shell is no step of srun. What is
// there and cannot be, or is missing beside it, is a bad request that names the variable.
std::optional<TcpOptions> placement_of(const Environment&);

// The first host of a Slurm list: "gpu07" of "gpu[07-09,12],login1". A bad request where it has none.
std::string first_host(std::string_view nodes);

}  // namespace trireme
