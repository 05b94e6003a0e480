// Every rank's collectives, told to its pulse: what it waits in, and what it has not come to (watch/judge.h).
#pragma once
#include <memory>

#include "comm/comm_set.h"
#include "comm/watch/pulse.h"

namespace trireme {

// control()'s agreements are watched too. Some stores a call. The factory and the pulse outlive what is made;
// device: as the inner factory's.
std::unique_ptr<CommFactory> make_watched(CommFactory&, Device*, Pulse&);

}  // namespace trireme
