// What a link costs, measured by messages between two ranks.
#pragma once
#include <functional>

#include "comm/comm_set.h"
#include "comm/options.h"

namespace trireme {

// alpha: seconds of an exchange of one element between ranks 0 and 1 of the group, the best of many; beta:
// what each further byte adds in messages of `bytes` both ways at once. Collective; the same on every rank.
// Host memory; calls are made on the compute stream. Rank 0 asks `stop` now and then: true ends it, with the
// best so far.
LinkCost measure_link(Communicator&, double seconds = 0.2, int64_t bytes = 8 << 20,
                      const std::function<bool()>& stop = {});

}  // namespace trireme
