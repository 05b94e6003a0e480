// Seconds of a collective on a cluster of any number of levels, in closed form.
//
// A group is placed on the levels: c0 of its ranks in each node, c1 of these nodes in each rack, ... On each
// level a round costs alpha seconds (LinkSpec::round), and a rank has w bytes/s there: in the node the link's
// bandwidth, above it the node's, shared by the ranks that use it; both times the link's efficiency. With n
// ranks, q nodes, N bytes (the full buffer: of all_to_all what a rank sends, of p2p the message):
//
//   ring: 2 (n - 1) rounds for an all_reduce, else n - 1; 2 (n-1)/n N bytes, else half; broadcast N
//   tree: 2 sum log2 c rounds; in the node 2 (c0-1)/c0 N bytes, above it 2 N/c0 (N/c0 where q = 2)
//   halving: 2 log2 n rounds, else half; bytes as the ring's
//   hierarchical: rounds as the tree's; bytes 2 (c-1)/c N / (ranks below) of each level, added up
//   in-switch: 2 rounds in the node, (c0+1)/c0 N bytes at reduce_bandwidth; above it as the tree
//   torus: half of each side that is closed, all of one that is not; bytes over all of a node's cables
//   direct: 1 round, the longest level's, and `message` for each peer; all_to_all (n-1)/n N, p2p N
//
// Ring: Patarasuk and Yuan 2009; halving and the scatter-gather broadcast: Thakur, Rabenseifner and Gropp
// 2005; tree: two trees at once, each with half of the data, so that every rank sends and receives 2 N
// (Sanders, Speck and Traeff 2009; NCCL since 2.4, whose trees join nodes, each rank for its share);
// hierarchical: reduce_scatter inside, all_reduce across, all_gather inside, one after another; in-switch:
// NVLink SHARP, where each device hands over its N bytes and a result of N/c0, rather than 2 N. Torus: rings
// on all axes at once, both ways round (Jouppi et al. 2023; "How to scale your model", section 3).
// The ring's rounds at a level are as many as its hops there, for a rank's data passes all of them.
//
// Bytes of several levels flow at the same time, in pieces (hierarchical: one after another), so the slowest
// level's seconds T count, and filling that pipe adds to them: k pieces through d rounds of a seconds take
// (k + d)(a + T/k), at the best k T + 2 sqrt(d a T) + d a (Sanders, Speck and Traeff 2009, section 2). d a of
// the middle term is LinkSpec::ramp: it makes bandwidth grow with size as libraries' protocols do. In all:
//
//   seconds = launch + sum of rounds + T + 2 sqrt(ramp T)
//
// p2p is latency + T: nothing is under way that would make it less than a lone message.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "spec/cluster_spec.h"

namespace trireme {

enum class CollectiveKind : uint8_t { all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, p2p };
enum class CollectiveWay : uint8_t { ring, tree, halving, hierarchical, in_switch, torus, direct };
inline constexpr CollectiveWay kCollectiveWays[] = {
    CollectiveWay::ring,      CollectiveWay::tree,  CollectiveWay::halving, CollectiveWay::hierarchical,
    CollectiveWay::in_switch, CollectiveWay::torus, CollectiveWay::direct};
std::string_view name_of(CollectiveKind);
std::string_view name_of(CollectiveWay);

// Where a group's ranks are.
struct Placement {
  std::vector<int64_t> counts;  // ranks in a node, nodes in a rack, ...: nearest first; the product is n
  int64_t sharing = 0;          // ranks of a node, of any group, that use its link at once; 0 = all devices

  int64_t size() const;
  bool operator==(const Placement&) const = default;
};

// `ranks` of a cluster, each `stride` world ranks from the one before, as they fill nodes, racks, ... in
// order. A group that does not divide evenly is priced as the next even one around it. A bad_request where
// the cluster is too small.
Placement place(const ClusterSpec&, int64_t ranks, int64_t stride = 1);
// As place(), but a cluster that is too small counts as one with more units on its highest level.
Placement place_beyond(const ClusterSpec&, int64_t ranks, int64_t stride);

// Seconds, or nothing where that way does not do this kind on this placement. Links that are not known cost
// nothing; a group of one takes 0.
std::optional<double> collective_seconds(CollectiveKind, CollectiveWay, double bytes, const Placement&,
                                         const ClusterSpec&);

// The fastest of what libraries for such devices choose from: ring, tree, in-switch, torus, direct. Halving
// and hierarchical are MPI's ways, to be asked for by name.
struct CollectiveTime {
  double seconds = 0;
  CollectiveWay way = CollectiveWay::direct;
};
CollectiveTime collective_time(CollectiveKind, double bytes, const Placement&, const ClusterSpec&);

// Seconds of one way as a function of bytes: fixed + T + 2 sqrt(ramp T), with T = bytes * per_byte.
struct CollectiveLine {
  double fixed = 0, per_byte = 0, ramp = 0;  // s, s per byte, s
  double at(double bytes) const;
};
// A line for each way that collective_time() chooses from; none for a group of one.
std::vector<CollectiveLine> collective_lines(CollectiveKind, const Placement&, const ClusterSpec&);

// NCCL's "bus bandwidth", bytes/s: what links carry whatever the number of ranks; 0 where it takes no time.
// all_reduce 2 (n-1)/n N / s, broadcast and p2p N / s, the others (n-1)/n N / s.
double bus_bandwidth(CollectiveKind, double bytes, int64_t ranks, double seconds);

}  // namespace trireme
