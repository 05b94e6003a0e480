// A world of any size in which nothing moves: calls are checked, counted and shown to observers. Planning is
// running the real code here.
#pragma once
#include <memory>

#include "comm/comm_set.h"
#include "comm/options.h"

namespace trireme {

// As rank `rank` of `world` sees it. control() has host memory and answers as if every rank were like this
// one.
std::unique_ptr<CommFactory> make_meta_comm(int rank, int world, const CommOptions& = {});

}  // namespace trireme
