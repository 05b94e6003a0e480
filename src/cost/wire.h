// Bytes on the wire between replicas in closed form (DESIGN.md section 4).
#pragma once
#include <cstdint>

#include "cost/memory.h"

namespace trireme {

struct ReplicaTraffic {
  Division division;
  int64_t groups = 1;  // shard groups (hybrid sharding); with zero 0 every replica is one
  int64_t microbatches = 1;
  bool reshard_after_forward = true;
  int64_t weight_bytes = 2, reduce_bytes = 2;  // of one element, as it travels
};

// Of one step, all ranks together. With Psi bytes of padded elements and one group of N ranks, N - 1 times:
// zero 0 and 1: 2 Psi; 2: (m + 1) Psi; 3: 3 m Psi, or 2 m Psi where weights stay gathered from F to B. With G
// groups, each of them that, and every sum of a shard goes over the groups: 2 (G - 1) Psi more for each
// reduction.
int64_t wire_bytes_per_step(const ModelSpec&, const ReplicaTraffic&);

}  // namespace trireme
