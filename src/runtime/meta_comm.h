// A rank of any world whose peers are not there: collectives are checked and counted, and move nothing.
#pragma once
#include "comm/comm_set.h"

namespace trireme {

std::unique_ptr<CommFactory> make_meta_comm(int rank, int world);

}  // namespace trireme
