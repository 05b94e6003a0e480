// Beats between processes: a small message a second from each rank to rank 0 and to a deputy, which judge.
#pragma once
#include <memory>

#include "comm/mpi/messages.h"
#include "comm/watch/watchdog.h"

namespace trireme::mpi {

// ranks: a communicator for beats alone, kept for as long as the process lives. Beats are sent to rank 0 and
// to the last rank; rank 0 judges all, the last one rank 0. A beat whose predecessor has not left yet is left
// out: nobody waits for a dead peer.
std::unique_ptr<BeatBoard> make_board(MPI_Comm ranks);

}  // namespace trireme::mpi
