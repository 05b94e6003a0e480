#include "spec/cluster_links.h"

#include <algorithm>

namespace trireme {

LinkSpec link_among_nodes(const ClusterSpec& cluster, int64_t nodes) {
  ClusterSpec part = cluster;
  part.tiers.clear();
  part.nodes = std::max(part.nodes, nodes);
  const std::vector<TierSpec> levels = part.levels();
  int64_t below = 1;  // nodes in a unit of the level
  for (const TierSpec& t : cluster.tiers.empty() ? levels : cluster.tiers) {
    if (part.tiers.empty() || below < nodes) part.tiers.push_back(t);
    below = t.size > INT64_MAX / below ? INT64_MAX : below * t.size;
  }
  return part.between_nodes();
}

}  // namespace trireme
