// All ranks of a group agree on every call before it: operation, type, elements, root, place in the order.
#pragma once
#include <memory>

#include "comm/comm_set.h"

namespace trireme {

// Ranks that differ all get an Error that names them and what each calls; it appears like any error of work
// on the stream. Costs an all_gather of 32 bytes a call, which is not counted. Messages (p2p) are not
// collective: each travels with a claim of 32 bytes of what it is, which its receiver compares with what it
// expects; how many bytes, the backend compares.
// device: as the inner factory's; null = calls are done when they return.
std::unique_ptr<CommFactory> make_checked(std::unique_ptr<CommFactory>, Device*);

}  // namespace trireme
