#include "cost/stated_links.h"

#include <algorithm>
#include <utility>

namespace trireme {

namespace {
constexpr size_t kKept = 512;  // groups, each in its place

void scale(LinkSpec& link, double times) {
  link.bandwidth *= times;
  link.reduce_bandwidth *= times;
}
}  // namespace

StatedLinks::StatedLinks(ClusterSpec cluster) : cluster_(std::move(cluster)), kept_(kKept) {}

double StatedLinks::seconds(CollectiveKind kind, double bytes, int64_t ranks, int64_t stride) const {
  if (ranks <= 1) return 0;
  const uint64_t mixed = (uint64_t(ranks) * 0x9E3779B97F4A7C15u) ^ (uint64_t(stride) * 0xC2B2AE3D27D4EB4Fu);
  Kept& k = kept_[((mixed >> 40) ^ uint64_t(kind)) % kKept];
  if (k.ranks != ranks || k.stride != stride || k.kind != kind)
    k = {ranks, stride, kind, collective_lines(kind, place_beyond(cluster_, ranks, stride), cluster_)};
  double least = k.lines.empty() ? 0 : k.lines.front().at(bytes);
  for (size_t i = 1; i < k.lines.size(); i++) least = std::min(least, k.lines[i].at(bytes));
  return least;
}

std::shared_ptr<const StatedLinks> StatedLinks::scaled(double near, double far) const {
  ClusterSpec c = cluster_;
  scale(c.intra_node, near), scale(c.inter_node, far);
  // Chips on a torus are near each other without a node.
  for (size_t i = 0; i < c.tiers.size(); i++)
    scale(c.tiers[i].link, i == 0 && c.tiers[i].torus() && c.devices_per_node == 1 ? near : far);
  return std::make_shared<const StatedLinks>(std::move(c));
}

void set_near(DeviceFigures& d, double bus) {
  if (d.links && d.bus > 0) d.links = d.links->scaled(bus / d.bus, 1);
  d.bus = bus;
}

void set_far(DeviceFigures& d, double nic) {
  if (d.links && d.nic > 0) d.links = d.links->scaled(1, nic / d.nic);
  d.nic = nic;
}

}  // namespace trireme
