#include "catalog/cluster_device.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "base/error_lines.h"
#include "catalog/call_price.h"
#include "catalog/catalog.h"
#include "catalog/cluster_data.h"
#include "catalog/price_list.h"
#include "cost/stated_links.h"
#include "spec/cluster_links.h"
#include "spec/rank_kinds.h"
#include "spec/suggest.h"

namespace trireme {
namespace {

constexpr double kGiga = 1e9;
constexpr double kAttention = 0.5;  // share of the peak, if the device's rate was not measured

std::string upper(std::string s) {
  for (char& c : s)
    if (c >= 'a' && c <= 'z') c = char(c - 'a' + 'A');
  return s;
}

bool says_more_than_bandwidth(const LinkSpec& l) {
  return l.latency > 0 || l.round > 0 || l.message > 0 || l.ramp > 0 || l.reduce_bandwidth > 0 ||
         l.efficiency < 1;
}

// Does the file say more of collectives than DeviceFigures has?
bool states_collectives(const ClusterSpec& c) {
  return c.launch > 0 || c.oversubscription > 1 || says_more_than_bandwidth(c.intra_node) ||
         says_more_than_bandwidth(c.inter_node) ||
         std::any_of(c.tiers.begin(), c.tiers.end(),
                     [](const TierSpec& t) { return says_more_than_bandwidth(t.link); });
}

// As many nodes as the devices need, joined by the link that the figures assume if the file has none.
ClusterSpec with_nodes(ClusterSpec c, int64_t nodes, double nic) {
  if (nodes > c.nodes) {
    const int64_t times = c.tiers.empty() ? 1 : (nodes - 1) / c.nodes + 1;
    if (!c.tiers.empty()) c.tiers.back().size *= times;
    c.nodes = c.tiers.empty() ? nodes : c.nodes * times;
  }
  if (c.tiers.empty() && c.inter_node.bandwidth == 0)
    c.inter_node.bandwidth = nic * double(c.devices_per_node);
  return c;
}

ClusterSpec cluster_of_catalog(const KnownDevice& k, int64_t devices) {
  const DeviceFigures& f = k.figures;
  ClusterSpec c;
  c.name = k.name;
  c.source = "data/score_catalog.json";
  c.devices_per_node = int64_t(f.near);
  c.nodes = std::max<int64_t>(1, (devices + c.devices_per_node - 1) / c.devices_per_node);
  c.peak.bf16 = c.peak.f16 = f.bf16;
  c.peak.fp8 = f.fp8;
  c.peak.fp4 = f.fp4;
  c.memory_bytes = int64_t(f.memory);
  c.memory_bandwidth = f.bandwidth;
  c.intra_node.bandwidth = f.bus;
  c.inter_node.bandwidth = f.nic * f.near;
  if (const ClusterSpec* file = k.cluster.empty() ? nullptr : shipped_cluster(k.cluster)) {
    c.peak.f32 = file->peak.f32;
    c.power = file->power;
    c.storage = file->storage;
    c.host_bandwidth = file->host_bandwidth;
  }
  return c;
}

}  // namespace

bool has_own_devices(const ClusterSpec& c) {
  return c.devices_per_node > 1 || !c.tiers.empty();
}

SubjectDevice device_of(const ClusterSpec& whole, std::string_view compute, int64_t devices) {
  const ClusterSpec c = used_kinds(whole, devices);
  SubjectDevice d{.name = c.name, .source = c.source};
  const int64_t per = c.devices_per_node, nodes = devices > 0 ? (devices - 1) / per + 1 : c.nodes;
  d.figures = {.bf16 = c.peak_flops(compute),
               .fp8 = c.peak_flops("fp8"),
               .memory = double(c.memory_bytes),
               .bandwidth = c.memory_bandwidth,
               .bus = c.intra_node.bandwidth,
               .near = double(c.devices_per_node),
               .nic = link_among_nodes(c, c.leaf_nodes > 0 ? 2 : nodes).bandwidth / double(per)};
  // Chips on a torus are near as far as it reaches: a ring has two cables of each chip, one each way round.
  // Larger groups on two or three of its sides have more; that is left out.
  if (c.devices_per_node == 1 && !c.tiers.empty() && c.tiers.front().torus()) {
    const TierSpec& torus = c.tiers.front();
    constexpr double kCables = 2;
    d.figures.bus = kCables * torus.link.bandwidth * torus.link.efficiency,
    d.figures.near = double(torus.size);
    d.figures.nic = c.tiers.size() > 1 ? c.tiers[1].link.bandwidth * c.tiers[1].link.efficiency : 0;
    d.machine = 1;
  }
  std::string device = c.name;  // the slowest kind's, if there are several
  double slowest = std::numeric_limits<double>::infinity();
  for (const KindSpec& k : c.kinds) {
    if (k.peak.bf16 >= slowest) continue;
    slowest = k.peak.bf16;
    device = k.name;
  }
  // The catalog's figures of the same device know what a cluster file does not: how its products slow down.
  if (const KnownDevice* k = shipped_catalog().device_alike(upper(device), double(c.memory_bytes))) {
    d.name = k->name, d.curve = k->name;
    const DeviceFigures& f = k->figures;
    d.figures.attention = f.attention, d.figures.attention2 = f.attention2;
    d.figures.k0 = f.k0;
    d.figures.units = f.units;
    if (d.figures.nic == 0 && f.nic > 0) {
      d.figures.nic = f.nic;
      d.assumed = fmt::format(
          "a link between nodes of {:g} GB/s a device, {}'s in data/score_catalog.json, for it has none "
          "itself",
          f.nic / kGiga, k->name);
    }
    if (d.figures.bus == 0) d.figures.bus = f.bus;
  }
  if (has_own_devices(c) && states_collectives(c))
    d.figures.links = std::make_shared<const StatedLinks>(with_nodes(c, nodes, d.figures.nic));
  d.note = too_few_devices(whole, "cluster " + c.name, devices, d.assumed);
  if (d.note.empty() && !d.assumed.empty() && devices > per)
    d.note = fmt::format("cluster {}: priced by {}; right is inter_node.bandwidth and .latency in that file",
                         c.name, d.assumed);
  d.price_per_hour = c.price_per_hour;
  d.currency = c.currency;
  if (c.price_per_hour == 0 && !c.region.empty()) {
    const ListedPrice listed = listed_price("", c.region, d.name);
    d.price_per_hour = listed.per_hour;
    d.currency = listed.currency;
  }
  d.mtbf_hours = c.mtbf_hours;
  d.site = with_nodes(whole, nodes, d.figures.nic);
  d.host = c.host_bandwidth;
  d.disk = c.disk_bandwidth / std::max(1.0, d.machine > 0 ? double(d.machine) : d.figures.near);
  return d;
}

namespace {

// Cluster files compiled in that are meant: of that name; else those whose name's first words it is
// ("mi300x", "h100-pcie"), which must be one.
std::vector<std::string> files_called(const std::string& cluster) {
  const std::string asked = upper(cluster);
  std::vector<std::string> begun;
  for (const ShippedCluster& c : kShippedClusters) {
    const std::string name = upper(std::string(c.name));
    if (name == asked) return {std::string(c.name)};
    if (name.starts_with(asked + "-")) begun.emplace_back(c.name);
  }
  return begun;
}

// asked: the option or key that names it.
[[noreturn]] void refuse_device(const std::string& cluster, std::string_view asked) {
  std::vector<std::string> names, known;
  for (const KnownDevice& k : shipped_catalog().devices) {
    names.push_back(k.name), known.push_back(upper(k.name));
    for (const std::string& m : k.match) known.push_back(upper(m));
  }
  for (const ShippedCluster& c : kShippedClusters)
    names.emplace_back(c.name), known.push_back(upper(names.back()));
  const std::string meant = suggest(upper(cluster), known);
  std::string call;  // as it is written
  for (const std::string& n : names)
    if (upper(n) == meant) call = n;
  if (call.empty()) call = meant;
  bad_request(
      "{}: no \"{}\"{}; right are a cluster file (.toml, such as configs/cluster/{}.toml) or one of: "
      "{}",
      asked, cluster, call.empty() ? "" : fmt::format(", did you mean {}?", call),
      kShippedClusters.front().name, fmt::join(names, ", "));
}

// The one shipped file that is meant.
std::string file_called(const std::string& cluster, std::string_view asked) {
  const std::vector<std::string> files = files_called(cluster);
  if (files.empty()) refuse_device(cluster, asked);
  if (files.size() > 1)
    bad_request("{}: \"{}\" begins the names of several cluster files: configs/cluster/{}.toml", asked,
                cluster, fmt::join(files, ".toml, configs/cluster/"));
  return files[0];
}

// Runs `read`, whose errors concern the value of a key or option: each line names it.
template <class Read>
auto naming(std::string_view asked, const Read& read) {
  try {
    return read();
  } catch (const ErrorLines& e) {
    std::vector<std::string> lines = e.lines;
    for (std::string& line : lines) line = fmt::format("{}: {}", asked, line);
    throw ErrorLines(std::move(lines), e.fault);
  } catch (const Error& e) {
    throw Error(fmt::format("{}: {}", asked, e.what()), e.fault);
  }
}

}  // namespace

ClusterSpec cluster_called(const std::string& file, int64_t devices) {
  std::error_code ec;
  if (!is_device_name(file) || fs::exists(file, ec))
    return naming("cluster.file", [&] { return load_cluster(file); });
  if (const KnownDevice* k = shipped_catalog().device_called(file)) return cluster_of_catalog(*k, devices);
  return *shipped_cluster(file_called(file, "cluster.file"));
}

SubjectDevice device_of(const std::string& cluster, int64_t devices) {
  if (cluster.empty()) return {};
  if (!is_device_name(cluster))
    return device_of(naming("--cluster", [&] { return named_cluster(cluster); }), "bf16", devices);
  if (const KnownDevice* k = shipped_catalog().device_called(cluster)) {
    SubjectDevice d{.name = k->name,
                    .source = "data/score_catalog.json",
                    .figures = k->figures,
                    .curve = k->name,
                    .mtbf_hours = ClusterSpec().mtbf_hours};
    d.site = cluster_of_catalog(*k, devices);
    d.host = d.site.host_bandwidth;
    return d;
  }
  const std::string file = file_called(cluster, "--cluster");
  SubjectDevice d = device_of(*shipped_cluster(file), "bf16", devices);
  d.source = fmt::format("configs/cluster/{}.toml", file);
  return d;
}

void complete_figures(SubjectDevice& d, int64_t devices, std::string_view asked) {
  DeviceFigures& f = d.figures;
  if (f.attention == 0) f.attention = kAttention * f.bf16;
  const bool alone = devices == 1, nodes = double(devices) > f.near;
  for (const auto& [name, known] :
       {std::pair{"peak.bf16", f.bf16 > 0}, std::pair{"memory_bytes", f.memory > 0},
        std::pair{"memory_bandwidth", f.bandwidth > 0}, std::pair{"intra_node.bandwidth", alone || f.bus > 0},
        std::pair{"inter_node.bandwidth", !nodes || f.nic > 0}})
    if (!known)
      bad_request("{}: {} has no {}, which the forecast needs", asked,
                  d.name.empty() ? "the cluster file" : d.name, name);
}

std::string curve_text(const SubjectDevice& d) {
  if (!d.curve.empty()) return fmt::format("products and attention by {}'s curves", d.curve);
  return fmt::format("attention at {:g} % of the peak, for nobody measured the device's", 100 * kAttention);
}

std::string no_bf16_text(std::string_view device, std::string_view compute) {
  const KnownDevice* k = shipped_catalog().device_called(device);
  if (!k || !k->no_bf16 || (compute != "bf16" && compute != "auto")) return "";
  return fmt::format("{} has no bf16: priced at its f16 rate; expected precision.compute = \"f16\"", k->name);
}

bool is_device_name(const std::string& cluster) {
  return !cluster.empty() && !cluster.ends_with(".toml");
}

ClusterSpec named_cluster(const fs::path& path) {
  ClusterSpec c = load_cluster(path);
  if (c.name.empty()) c.name = path.string();
  return c;
}

}  // namespace trireme
