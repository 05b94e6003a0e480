// What a call between ranks costs on a cluster whose file says what collectives need to know.
#pragma once
#include <span>

#include "comm/options.h"
#include "cost/collective_time.h"

namespace trireme {

// The file has levels above the node, or a link that says more than latency and bandwidth: device ranks talk
// by the libraries that cost/collective_time.h prices. A plain file's ranks, such as this machine's threads,
// talk by comm's own algorithms (call_seconds).
bool knows_collectives(const ClusterSpec&);

// It has levels above the node, and the bandwidth of every link: what any call takes is known.
bool wires_stated(const ClusterSpec&);

// The links of a forecast: options_of(), but rank threads stand for the ranks of a cluster of devices, and
// meet the links among its nodes, where the file has them and a node does not hold all ranks.
CommOptions forecast_links(const RunSpec&, const ClusterSpec&);

// Where the run has more ranks than the file has devices: what is missing, in one line; else empty.
// in_closed_form: the step is priced by device_of(), which assumes a link between nodes if the file has none.
std::string too_few_devices(const RunSpec&, const ClusterSpec&, bool in_closed_form = false);
// name: the file's; assumed: by which link between nodes it is priced where the file has none, in words.
std::string too_few_devices(const ClusterSpec&, std::string_view name, int64_t devices,
                            std::string_view assumed);

// World ranks fill nodes, racks, ... in order, a device each. A group that is uneven on a level counts as its
// fullest unit does. Of `world` ranks so many share a node's link.
Placement placement_of(std::span<const int> ranks, int64_t world, const ClusterSpec&);

// Libraries of devices make the collectives of this run: NCCL, or what the cluster file says more of than
// plain links.
bool by_libraries(const RunSpec&, const ClusterSpec&);

// Seconds of a call of these ranks. any_way: the library chooses, whatever order of sums the call names. Sums
// in the owner's order, which no library does, are priced as such (half_seconds) on the placement's links;
// ring, halving and hierarchical as themselves where the placement has them; all else by the fastest way.
double library_call_seconds(const CommCall&, std::span<const int> ranks, int64_t world, const ClusterSpec&,
                            CommOptions links, bool any_way = false);

}  // namespace trireme
