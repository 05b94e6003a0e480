// All ranks of a group agree on every call before it: operation, type, elements, root, place in the order.
#pragma once
#include <memory>

#include "comm/comm_set.h"

namespace trireme {

// Ranks that differ all get an Error that names them and what each calls; it appears like any error of work
// on the stream. Costs an all_gather of 32 bytes a call, which is not counted. Messages (p2p) are not
// collective: each travels with a claim of 32 bytes of what it is, which its receiver compares with what it
// expects; how many bytes, the backend compares.
//
// Rows of an all_to_all are conserved: for every two ranks a hash of what one sent to the other, each row
// with its place among them, is compared with that of what arrived there, so a row that was lost, doubled or
// changed on the way is told by whose it was. It costs a pass over the rows on either side, and an all_gather
// of 16 bytes for each other rank from each rank, which is not counted. Of memory that the host reads: on a
// CPU. device: as the inner factory's; null = calls are done when they return.
std::unique_ptr<CommFactory> make_checked(std::unique_ptr<CommFactory>, Device*);

}  // namespace trireme
