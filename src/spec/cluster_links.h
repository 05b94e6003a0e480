// Which of a cluster's levels some of its nodes need.
#pragma once
#include "spec/cluster_spec.h"

namespace trireme {

// The slowest that one of so many neighbouring nodes meets on its way to another of them: levels above the
// one that holds them all do not count. Of one node: the level above it. ClusterSpec::between_nodes() is of
// all.
LinkSpec link_among_nodes(const ClusterSpec&, int64_t nodes);

}  // namespace trireme
