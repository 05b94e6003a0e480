#include "catalog/call_price.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "base/counted.h"
#include "catalog/cluster_device.h"
#include "comm/algorithms.h"
#include "spec/cluster_links.h"

namespace trireme {
namespace {

bool says_more(const LinkSpec& link) {
  LinkSpec plain;
  plain.latency = link.latency, plain.bandwidth = link.bandwidth;
  return !(link == plain);
}

std::optional<CollectiveKind> kind_of(Collective c) {
  switch (c) {
    case Collective::all_reduce:
      return CollectiveKind::all_reduce;
    case Collective::all_gather:
      return CollectiveKind::all_gather;
    case Collective::reduce_scatter:
      return CollectiveKind::reduce_scatter;
    case Collective::all_to_all:
      return CollectiveKind::all_to_all;
    case Collective::broadcast:
    case Collective::reduce:  // a broadcast backwards
      return CollectiveKind::broadcast;
    case Collective::p2p:
      return CollectiveKind::p2p;
    default:
      return std::nullopt;
  }
}

std::optional<CollectiveWay> way_of(std::string_view algorithm) {
  for (const CollectiveWay w : {CollectiveWay::ring, CollectiveWay::halving, CollectiveWay::hierarchical})
    if (name_of(w) == algorithm) return w;
  return std::nullopt;
}

}  // namespace

bool wires_stated(const ClusterSpec& c) {
  const std::vector<TierSpec> levels = c.levels();
  return !c.tiers.empty() && (c.devices_per_node == 1 || cost_of(c.intra_node).known()) &&
         std::all_of(levels.begin(), levels.end(), [](const TierSpec& t) { return t.link.bandwidth > 0; });
}

bool knows_collectives(const ClusterSpec& c) {
  return !c.tiers.empty() || c.launch > 0 || says_more(c.intra_node) || says_more(c.inter_node);
}

CommOptions forecast_links(const RunSpec& run, const ClusterSpec& cluster) {
  CommOptions o = options_of(run, cluster);
  const int64_t per = cluster.devices_per_node;
  if (run.train.comm != "thread" || per <= 1 || run.world() <= per) return o;
  const LinkCost across = cost_of(link_among_nodes(cluster, (run.world() - 1) / per + 1));
  if (across.known()) o.node = int(per), o.across = across;
  return o;
}

std::string too_few_devices(const ClusterSpec& cluster, std::string_view name, int64_t devices,
                            std::string_view assumed) {
  const int64_t per = cluster.devices_per_node, has = per * cluster.nodes, nodes = (devices - 1) / per + 1;
  if ((per <= 1 && cluster.tiers.empty()) || devices <= has) return {};
  const bool linked = cost_of(link_among_nodes(cluster, nodes)).known();
  std::string priced = "as if it had as many, by its links between nodes";
  if (!linked) priced = "as if all shared one node's links, for it has no others";
  if (!linked && !assumed.empty()) priced = fmt::format("as if it had as many, by {}", assumed);
  return fmt::format(
      "{} has {} of {} = {}, and the run takes {} = {}: priced {}; right is nodes = {}{} in that file", name,
      counted(cluster.nodes, "node"), counted(per, "device"), has, counted(devices, "rank"),
      counted(nodes, "node"), priced, nodes, linked ? "" : " and inter_node.bandwidth and .latency");
}

std::string too_few_devices(const RunSpec& run, const ClusterSpec& cluster, bool in_closed_form) {
  return too_few_devices(cluster,
                         run.cluster.file.empty()
                             ? "the cluster file"
                             : std::filesystem::path(run.cluster.file).filename().string(),
                         run.world(), in_closed_form ? device_of(cluster, "bf16", run.world()).assumed : "");
}

Placement placement_of(std::span<const int> ranks, int64_t world, const ClusterSpec& cluster) {
  std::vector<int64_t> sizes = {cluster.devices_per_node};
  for (const TierSpec& t : cluster.levels()) sizes.push_back(t.size);
  Placement p{.counts = {}, .sharing = std::min(cluster.devices_per_node, world)};
  std::set<int64_t> units(ranks.begin(), ranks.end());
  for (const int64_t size : sizes) {
    std::set<int64_t> above;
    int64_t most = 0, here = 0, last = -1;
    for (const int64_t u : units) {  // in order: those of one unit above stand together
      here = u / size == last ? here + 1 : 1, last = u / size;
      most = std::max(most, here), above.insert(last);
    }
    p.counts.push_back(most);
    units = std::move(above);
  }
  if (units.size() > 1) p.counts.back() *= int64_t(units.size());  // more ranks than the file has devices
  return p;
}

bool by_libraries(const RunSpec& run, const ClusterSpec& cluster) {
  return run.train.comm == "nccl" || knows_collectives(cluster);
}

double library_call_seconds(const CommCall& call, std::span<const int> ranks, int64_t world,
                            const ClusterSpec& cluster, CommOptions links, bool any_way) {
  const std::optional<CollectiveKind> kind = kind_of(call.kind);
  if (!kind || ranks.size() <= 1) return 0;
  const bool sums = *kind == CollectiveKind::all_reduce || *kind == CollectiveKind::reduce_scatter;
  const std::optional<CollectiveWay> way = any_way ? std::nullopt : way_of(call.algorithm);
  if (sums && !way && !any_way) {
    if (cluster.nodes > 1) links.node = int(cluster.devices_per_node);
    return call_seconds(call, shape_of(ranks, links), links);
  }
  const Placement placed = placement_of(ranks, world, cluster);
  const double bytes = double(*kind == CollectiveKind::p2p ? call.wire : call.payload);
  if (way)
    if (const auto s = collective_seconds(*kind, *way, bytes, placed, cluster)) return *s;
  return collective_time(*kind, bytes, placed, cluster).seconds;
}

}  // namespace trireme
