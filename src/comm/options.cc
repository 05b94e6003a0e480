#include "comm/options.h"

#include <algorithm>
#include <array>

#include "spec/cluster_links.h"

namespace trireme {
namespace {

constexpr std::array<std::string_view, 4> kOrderNames = {"ordered", "ring", "halving", "hierarchical"};

// Rounds of recursive halving: the distance to the peer and the blocks that are sent in each (algorithms.h).
template <class Round>
void each_round(int size, const Round& round) {
  for (int s = size; s > 1; s = (s + 1) / 2) round((s + 1) / 2, s / 2);
}

double halving_seconds(int size, int node, double payload, const LinkCost& inside, const LinkCost& across) {
  double seconds = 0;
  each_round(size, [&](int distance, int blocks) {
    const double bytes = payload / size * blocks;
    if (node == size) {
      seconds += inside.alpha + bytes * inside.beta;
      return;
    }
    // So many ranks of a node send to another node at once, over one link.
    const int sharing = std::min(distance, node);
    seconds += std::max(inside.alpha, across.alpha) + bytes * std::max(inside.beta, sharing * across.beta);
  });
  return seconds;
}

}  // namespace

std::string_view name_of(Algorithm a) {
  return kOrderNames[size_t(a)];
}

LinkCost cost_of(const LinkSpec& link) {
  return {link.latency, link.bandwidth > 0 ? 1 / (link.bandwidth * link.efficiency) : 0};
}

CommOptions options_of(const RunSpec& run, const ClusterSpec& cluster) {
  CommOptions o{.algorithm = run.train.sum_order};
  if (run.train.comm == "nccl") o.algorithm = "ring";  // what its own choice is priced as
  const bool by_threads = cluster.threads > 0;         // `bench` wrote it; others state the links of any rank
  const bool processes = run.train.comm == "mpi";
  const bool own = processes && (by_threads || cost_of(cluster.intra_node_mpi).known());
  o.inside = cost_of(own ? cluster.intra_node_mpi : cluster.intra_node);
  o.across = cost_of(cluster.between_nodes());
  if (run.train.comm == "thread" || cluster.nodes <= 1) return o;
  const int64_t even = (run.world() + cluster.nodes - 1) / cluster.nodes;
  o.node = int(cluster.devices_per_node > 1 ? cluster.devices_per_node : even);
  o.across = cost_of(link_among_nodes(cluster, (run.world() + o.node - 1) / o.node));
  return o;
}

bool links_known(const CommOptions& o) {
  return (o.node == 1 || o.inside.known()) && (o.node == 0 || o.across.known());
}

std::string links_wanted(const RunSpec& run, const ClusterSpec& cluster) {
  if (run.train.comm == "thread") return "intra_node, as `trireme bench` measures it";
  if (options_of(run, cluster).node > 0)
    return "intra_node_mpi and inter_node, as `mpirun ... trireme bench --out FILE` measures them over these "
           "machines";
  return "intra_node_mpi, as `mpirun -n 2 trireme bench` measures it";
}

void check(const CommOptions& o, std::string_view key) {
  if (o.algorithm != "auto" &&
      std::find(kOrderNames.begin(), kOrderNames.end(), o.algorithm) == kOrderNames.end())
    bad_request("{} = \"{}\" is no way to add up; there are ordered, ring, halving, hierarchical and auto",
                key, o.algorithm);
}

GroupShape shape_of(std::span<const int> ranks, const CommOptions& o) {
  const int size = int(ranks.size());
  if (o.node <= 0) return {size, size};
  auto node_of = [&](size_t i) { return ranks[i] / o.node; };
  int node = 1;
  while (node < size && node_of(size_t(node)) == node_of(0)) node++;
  for (int i = 0; i < size; i++) {
    const bool first = i % node == 0;
    if (i > 0 && (node_of(size_t(i)) != node_of(size_t(i) - 1)) != first) return {size, size};
  }
  return size % node == 0 ? GroupShape{size, node} : GroupShape{size, size};
}

double half_seconds(Algorithm a, const GroupShape& g, double payload, const CommOptions& o) {
  const double share = payload / g.size, others = g.size - 1;
  const bool one_node = g.nodes() == 1;
  const LinkCost slow =
      one_node ? o.inside
               : LinkCost{std::max(o.inside.alpha, o.across.alpha), std::max(o.inside.beta, o.across.beta)};
  switch (a) {
    case Algorithm::ordered:  // one round; a node's ranks share its link for all that goes elsewhere
      if (one_node) return o.inside.alpha + others * share * o.inside.beta;
      return slow.alpha + std::max((g.node - 1) * share * o.inside.beta,
                                   double(g.node) * (g.size - g.node) * share * o.across.beta);
    case Algorithm::ring:  // of a node's ranks one sends to the next node
      return others * (slow.alpha + share * slow.beta);
    case Algorithm::halving:
      return halving_seconds(g.size, g.node, payload, o.inside, o.across);
    case Algorithm::hierarchical: {
      const LinkCost shared{o.across.alpha, o.across.beta * g.node};
      return halving_seconds(g.node, g.node, payload, o.inside, o.inside) +
             halving_seconds(g.nodes(), g.nodes(), payload / g.node, shared, shared);
    }
  }
  return 0;
}

Algorithm choose(const GroupShape& g, int64_t payload, const CommOptions& o) {
  const bool levels = g.nodes() > 1 && g.node > 1;
  for (Algorithm a : {Algorithm::ordered, Algorithm::ring, Algorithm::halving, Algorithm::hierarchical})
    if (o.algorithm == name_of(a))
      return a == Algorithm::hierarchical && !levels ? Algorithm::halving : a;  // one level is halving
  Algorithm best = Algorithm::halving;
  for (Algorithm a : {Algorithm::ring, Algorithm::hierarchical}) {
    if (a == Algorithm::hierarchical && !levels) continue;
    if (half_seconds(a, g, double(payload), o) < half_seconds(best, g, double(payload), o)) best = a;
  }
  return best;
}

std::string_view algorithm_name(Collective c, int64_t payload, const GroupShape& g, const CommOptions& o) {
  const bool adds = c == Collective::all_reduce || c == Collective::reduce_scatter;
  if (adds || c == Collective::all_gather) {
    const Algorithm a = choose(g, payload, o);
    if (adds || a != Algorithm::ordered) return name_of(a);
  }
  return c == Collective::reduce ? "ordered" : "direct";
}

}  // namespace trireme
