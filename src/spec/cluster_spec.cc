#include "spec/cluster_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <type_traits>

#include "base/error.h"
#include "spec/kind.h"
#include "spec/reader.h"
#include "spec/toml.h"
#include "spec/walk.h"

namespace trireme {
namespace {

constexpr size_t kMostTiers = 8;
using Keys = std::vector<std::string>;

// Of a product that may be large.
double product(const Numbers& dims) {
  double n = 1;
  for (double d : dims) n *= d;
  return n;
}

void check_tier(Reader& r, const std::string& key, const TierSpec& t) {
  if (t.torus() && t.dims.empty())
    r.problem(Keys{key + ".dims", key + ".kind"}, "a torus needs its sides, such as dims = [4, 4]");
  if (!t.torus() && !t.dims.empty())
    r.problem(Keys{key + ".dims", key + ".kind"}, "a switch has no dims; write kind = \"torus\"");
  if (std::any_of(t.dims.begin(), t.dims.end(), [](double d) { return d != std::floor(d); }))
    r.problem(key + ".dims", "sides of a torus are whole numbers");
  else if (t.torus() && !t.dims.empty() && product(t.dims) != double(t.size))
    r.problem(Keys{key + ".dims", key + ".size"},
              fmt::format("the product of dims is {:.0f} and size is {}; give equal numbers", product(t.dims),
                          t.size));
}

void check_tiers(Reader& r, const ClusterSpec& c) {
  if (c.tiers.empty()) return;
  if (c.tiers.size() > kMostTiers)
    return r.problem("tier", fmt::format("{} levels; give at most {}", c.tiers.size(), kMostTiers));
  if (c.inter_node.known())
    r.problem(Keys{"inter_node.bandwidth", "inter_node.latency"},
              "the first [[tier]] says how nodes are joined; leave inter_node out");
  double nodes = 1;
  std::vector<std::string> sizes = {"nodes"};
  for (size_t i = 0; i < c.tiers.size(); i++) {
    const std::string key = fmt::format("tier[{}]", i + 1);
    check_tier(r, key, c.tiers[i]);
    nodes *= double(c.tiers[i].size), sizes.push_back(key + ".size");
  }
  if (nodes != double(c.nodes))
    r.problem(sizes, fmt::format("nodes = {}, and the tiers' sizes multiply to {:.0f}; give equal numbers",
                                 c.nodes, nodes));
}

// A leaf switch is a level of inter_node: tiers state their own links.
void check_leaves(Reader& r, const ClusterSpec& c) {
  if (c.leaf_nodes > 0 && !c.tiers.empty())
    r.problem(Keys{"leaf_nodes", "tier[1].size"},
              "[[tier]] states each level and its bandwidth; leave leaf_nodes out");
  if (c.oversubscription > 1 && c.leaf_nodes == 0)
    r.problem(Keys{"oversubscription", "leaf_nodes"},
              "a leaf switch is oversubscribed; give leaf_nodes, the machines under one");
  if (c.leaf_nodes > 0 && c.nodes > c.leaf_nodes && c.nodes % c.leaf_nodes != 0)
    r.problem(Keys{"leaf_nodes", "nodes"},
              fmt::format("{} machines, and {} under a leaf; give a divisor", c.nodes, c.leaf_nodes));
}

// The least of the kinds that state it; 0 = one of them does not.
template <class Number>
Number least_of(const std::vector<KindSpec>& kinds, const std::function<Number(const KindSpec&)>& of) {
  Number least = of(kinds[0]);
  for (const KindSpec& k : kinds) least = std::min(least, of(k));
  return least;
}

// Sets the figures of the slowest member. An op takes the longer of FLOPs / peak and bytes / bandwidth on
// each kind. So the least of each figure gives exactly the slowest kind's time. Prices and power are means.
void settle_kinds(Reader& r, ClusterSpec& c) {
  if (c.kinds.empty()) return;
  int64_t nodes = 0;
  for (const KindSpec& k : c.kinds) nodes += k.nodes;
  std::vector<std::string> keys = {"nodes"};
  for (size_t i = 0; i < c.kinds.size(); i++) keys.push_back(fmt::format("kind[{}].nodes", i + 1));
  if (nodes != c.nodes)
    r.problem(keys, fmt::format("nodes = {}, and the kinds have {}; give equal numbers", c.nodes, nodes));
  const auto settle = [&](auto& value, const char* key, auto of) {
    using Number = std::remove_reference_t<decltype(value)>;
    const Number least = least_of<Number>(c.kinds, of);
    if (value != Number() && value != least)
      r.problem(key,
                fmt::format("[[kind]] states it of each kind (the least is {}); leave it out here", least));
    value = least;
  };
  settle(c.peak.f32, "peak.f32", [](const KindSpec& k) { return k.peak.f32; });
  settle(c.peak.bf16, "peak.bf16", [](const KindSpec& k) { return k.peak.bf16; });
  settle(c.peak.f16, "peak.f16", [](const KindSpec& k) { return k.peak.f16; });
  settle(c.peak.fp8, "peak.fp8", [](const KindSpec& k) { return k.peak.fp8; });
  settle(c.peak.fp4, "peak.fp4", [](const KindSpec& k) { return k.peak.fp4; });
  settle(c.memory_bytes, "memory_bytes", [](const KindSpec& k) { return k.memory_bytes; });
  settle(c.memory_bandwidth, "memory_bandwidth", [](const KindSpec& k) { return k.memory_bandwidth; });
  settle(c.host_bandwidth, "host_bandwidth", [](const KindSpec& k) { return k.host_bandwidth; });
  double price = 0;
  double watts = 0;
  for (const KindSpec& k : c.kinds) {
    price += k.price_per_hour * double(k.nodes) / double(nodes);
    watts += k.watts * double(k.nodes) / double(nodes);
  }
  if (price > 0) c.price_per_hour = price;
  if (watts > 0) c.power.device = watts;
}

// What a plain file has no need of, and is written only where it says something.
bool fine_print(const std::string& key) {
  const std::string name = key.substr(key.rfind('.') + 1);
  for (const char* fine :
       {"f16", "fp8", "fp4", "efficiency", "round", "message", "ramp", "reduce_bandwidth", "launch", "dims"})
    if (name == fine) return true;
  for (const char* section : {"storage.", "power."})
    if (key.starts_with(section)) return true;
  for (const char* fine : {"region", "leaf_nodes", "oversubscription"})
    if (key == fine) return true;
  return name.starts_with("step_");
}

}  // namespace

double ClusterSpec::peak_flops(std::string_view dtype) const {
  if (dtype == "f16") return peak.f16 > 0 ? peak.f16 : peak.f32;
  if (dtype == "fp8") return peak.fp8;
  if (dtype == "fp4") return peak.fp4;
  return dtype == "f32" ? peak.f32 : dtype == "bf16" ? peak.bf16 : 0;
}

std::vector<TierSpec> ClusterSpec::levels() const {
  if (!tiers.empty() || nodes <= 1) return tiers;
  TierSpec all;
  all.name = "cluster";
  all.size = nodes;
  all.link = inter_node;
  if (leaf_nodes == 0 || leaf_nodes >= nodes) return {all};
  TierSpec leaf = all;
  leaf.name = "leaf";
  leaf.size = leaf_nodes;
  all.size = (nodes + leaf_nodes - 1) / leaf_nodes;
  all.link.bandwidth /= oversubscription;
  return {leaf, all};
}

double ClusterSpec::checkpoint_bandwidth() const {
  const double machines = storage.node_bandwidth * double(nodes);
  if (storage.bandwidth > 0 && machines > 0) return std::min(storage.bandwidth, machines);
  if (storage.bandwidth > 0 || machines > 0) return std::max(storage.bandwidth, machines);
  return disk_bandwidth * double(nodes);
}

LinkSpec ClusterSpec::between_nodes() const {
  const std::vector<TierSpec> all = levels();
  if (all.empty()) return inter_node;
  LinkSpec slow = all.front().link;
  for (const TierSpec& t : all) {
    slow.latency = std::max(slow.latency, t.link.latency);
    if (t.link.bandwidth * t.link.efficiency < slow.bandwidth * slow.efficiency)
      slow.bandwidth = t.link.bandwidth, slow.efficiency = t.link.efficiency;
  }
  return slow;
}

namespace {

// Of each list of tables the first line that is none.
void check_tables(Reader& reader, const std::string& section, const Calibration& c) {
  for (const auto& [name, lines] : {std::pair("ops", &c.ops), {"calls", &c.calls}})
    for (const std::string& line : *lines) {
      std::string wrong;
      const SpeedTable t = speed_table_of(line, wrong);
      if (wrong.empty()) continue;
      reader.problem(section + "." + name, t.of.empty() ? wrong : fmt::format("{}: {}", shown(t.of), wrong));
      break;
    }
}

// A list of many texts, one a line; other values as they are. A quote behind a backslash is within a text.
std::string lines_of(const std::string& value) {
  constexpr std::string_view kBetween = "\", \"";
  if (!value.starts_with('[')) return value;
  std::string out;
  size_t begin = 0;
  for (size_t at = 1; (at = value.find(kBetween, at)) != std::string::npos; at += kBetween.size()) {
    if (value[at - 1] == '\\') continue;
    out += value.substr(begin, at - begin) + "\",\n  \"";
    begin = at + kBetween.size();
  }
  return out + value.substr(begin);
}

}  // namespace

ClusterSpec parse_cluster(std::string_view toml, std::string_view file) {
  std::vector<TomlEntry> entries = parse_toml(toml, file);
  if (kind_of_spec(entries) == SpecKind::run)
    bad_request(
        "{} is a run file; right is a cluster file, such as `trireme bench --out FILE` writes of this "
        "machine",
        file);
  Reader reader(std::move(entries), std::string(file));
  ClusterSpec cluster;
  reader.read(cluster);
  for (const auto& [name, c] : {std::pair("alone", &cluster.alone), {"together", &cluster.together}})
    check_tables(reader, name, *c);
  check_tiers(reader, cluster);
  check_leaves(reader, cluster);
  settle_kinds(reader, cluster);
  reader.report_unknown();
  reader.raise();
  return cluster;
}
ClusterSpec load_cluster(const fs::path& path) {
  const std::string text = read_small(path, kMostTomlBytes);
  if (parse_toml(text, path.string()).empty())
    bad_request(
        "{}: the file has no keys; expected a cluster file, such as `trireme bench --out FILE` writes",
        path.string());
  return parse_cluster(text, path.string());
}

std::string save_cluster(const ClusterSpec& cluster) {
  ClusterSpec plain;
  plain.tiers.resize(cluster.tiers.size());
  plain.kinds.resize(cluster.kinds.size());
  const std::vector<FieldText> defaults = fields_of(plain), fields = fields_of(cluster);
  std::string out, table;  // tables stand last: keys after [[tier]] are its own
  for (size_t i = 0; i < fields.size(); i++) {
    const FieldText& f = fields[i];
    if (f.key.starts_with("alone.") && !cluster.alone.known()) continue;
    if (f.key.starts_with("together.") && !cluster.together.known()) continue;
    if (fine_print(f.key) && f.value == defaults[i].value) continue;
    const size_t end = f.key.find("].");
    const std::string owner = end == std::string::npos ? "" : f.key.substr(0, end);
    if (owner != table) out += fmt::format("\n[[{}]]\n", owner.substr(0, owner.find('['))), table = owner;
    const std::string key = owner.empty() ? f.key : f.key.substr(end + 2);
    out += fmt::format("{:<36} # {}{}\n", fmt::format("{} = {}", key, lines_of(f.value)),
                       f.unit.empty() ? "" : fmt::format("[{}] ", f.unit), f.help);
  }
  return out;
}
void save_cluster(const ClusterSpec& cluster, const fs::path& path) {
  write_text_atomic(path, save_cluster(cluster));
}

}  // namespace trireme
