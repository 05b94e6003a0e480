// Which devices a run's ranks have, in a cluster of several kinds. Ranks fill machines in the order of
// [[kind]]. A pipeline rank has the kind of its ranks' devices. If these are of several kinds, it waits for
// the slowest, and has the least memory of them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/interned.h"
#include "spec/cluster_spec.h"
#include "spec/run_spec.h"

namespace trireme {

// The cluster with the figures of its slowest member among kinds [first, last] alone; machines are unchanged.
ClusterSpec with_kinds(ClusterSpec, size_t first, size_t last);
// The cluster with the kinds that n ranks use, and their machines: figures are the slowest one's, price
// and power means over the ranks' devices. Unchanged if it has fewer than two kinds or too few devices.
ClusterSpec used_kinds(const ClusterSpec&, int64_t ranks);
// Devices that the ranks use, by kind: "8 x H100 + 4 x A100-40GB".
std::string used_devices_text(const ClusterSpec&, int64_t ranks, std::string_view between = " + ");
// Devices that the ranks leave over; "" = none.
std::string unused_devices_text(const ClusterSpec&, int64_t ranks);
// By pipeline rank a number: the first and the last kind of its devices, first * kinds + last. Ranks beyond
// the cluster's devices may have any kind. Requires: the cluster has kinds.
NumberList kinds_of_ranks(const ClusterSpec&, const LayoutSpec&);
// Bytes of memory of the devices of each pipeline rank; empty for a cluster of one kind.
NumberList memory_of_ranks(const ClusterSpec&, const LayoutSpec&);
// Dense peaks of all ranks' devices in that type together, FLOP/s.
double peak_of_ranks(const ClusterSpec&, int64_t ranks, std::string_view dtype);

}  // namespace trireme
