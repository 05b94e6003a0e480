// How reductions between ranks are done, and what decides it.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "spec/cluster_spec.h"
#include "spec/run_spec.h"

namespace trireme {

// A message of n bytes takes alpha + n beta.
struct LinkCost {
  double alpha = 0;  // seconds
  double beta = 0;   // seconds per byte
  bool known() const { return alpha > 0 || beta > 0; }
};

struct CommOptions {
  // "ordered": the owner adds in rank order, the default and the one whose bits do not depend on anything
  // else. "ring", "halving", "hierarchical": one of the fast orders; "auto": the one that the links make
  // fastest.
  std::string algorithm = "ordered";
  int node = 0;             // this many neighbours (of world ranks) share a machine; 0 = all do
  LinkCost inside, across;  // between ranks of one node; of a node to others, shared by its ranks
};
LinkCost cost_of(const LinkSpec&);  // of a cluster file; 0 = not known stays 0
// A run's order of sums (train.sum_order), and the cluster's links as its ranks meet them: rank threads are
// on one machine, other ranks are dealt over its nodes in order. What rank threads measured of a machine says
// nothing of its processes. With train.comm = "nccl" reductions are priced as rings, whatever NCCL takes.
CommOptions options_of(const RunSpec&, const ClusterSpec& = {});
bool links_known(const CommOptions&);  // what "auto" needs, and a price
// Which links these are, and what measures them: "intra_node, as `trireme bench` measures it".
std::string links_wanted(const RunSpec&, const ClusterSpec& = {});
// An unknown algorithm is a bad_request that names `key` and what there is.
void check(const CommOptions&, std::string_view key);

enum class Algorithm : uint8_t { ordered, ring, halving, hierarchical };
std::string_view name_of(Algorithm);

// A group as machines see it: nodes of equal size, neighbours in rank order. 1 node where the group does not
// divide so.
struct GroupShape {
  int size = 1, node = 1;
  int nodes() const { return size / node; }
};
GroupShape shape_of(std::span<const int> ranks, const CommOptions&);

// Seconds of a reduce_scatter or all_gather of `payload` bytes; all_reduce is one of each. The ordered way is
// one round in which everybody sends to everybody.
double half_seconds(Algorithm, const GroupShape&, double payload, const CommOptions&);

// What is used for an all_reduce, all_gather or reduce_scatter of these bytes.
Algorithm choose(const GroupShape&, int64_t payload, const CommOptions&);

// What Communicator::algorithm() says: choose() where there is a choice, "ordered" for reduce, else "direct".
std::string_view algorithm_name(Collective, int64_t payload, const GroupShape&, const CommOptions&);

}  // namespace trireme
