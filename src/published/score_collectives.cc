#include "published/score_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/printable.h"
#include "base/progress.h"
#include "catalog/cluster_data.h"
#include "cost/collective_time.h"

namespace trireme {
namespace {

using Microbench = nlohmann::ordered_json;
using Kind = CollectiveKind;
using Way = CollectiveWay;

constexpr double kLarge = 16. * (1 << 30);  // bytes: where a source gives bandwidth without a size
constexpr double kShort = 64;               // bytes: where it gives a latency
constexpr double kLeast = 1e-9;             // of a measurement: less is none, and no error is a share of it

// What the keys below a path mean: sizes, GPUs of one node, or nodes. A number alone is of one node.
enum class CurveKeys { size, gpus, nodes, none };
enum class CurveUnit { bus, both_ways, microseconds };

// Where in the file a curve is, and what is forecast for it.
struct CurveRule {
  std::string_view section, path, name, cluster;
  Kind kind;
  CurveKeys keys;
  CurveUnit measure;
  double bytes;
  std::optional<Way> way;  // a given one; nothing: the fastest
};

constexpr double kEight = 8. * (1 << 30);
constexpr std::string_view kH200 = "nccl_allreduce_busbw_gbps_8xH200", kP5 = "nccl_multinode_aws_p5_h100",
                           kDeepSeek = "deepseek_latency_64B_us", kSelene = "selene";
constexpr CurveRule kRules[] = {
    {kH200,
     "curve_GBps",
     "all_reduce of 8 H200, by size",
     "h200-sxm-8",
     Kind::all_reduce,
     CurveKeys::size,
     CurveUnit::bus,
     0,
     {}},
    {kH200,
     "by_gpus_8GiB.h200",
     "all_reduce of H200, 8 GiB",
     "h200-sxm-8",
     Kind::all_reduce,
     CurveKeys::gpus,
     CurveUnit::bus,
     kEight,
     {}},
    {kH200, "by_gpus_8GiB.h200_ring", "the same by ring", "h200-sxm-8", Kind::all_reduce, CurveKeys::gpus,
     CurveUnit::bus, kEight, Way::ring},
    {kH200,
     "by_gpus_8GiB.b200",
     "all_reduce of B200, 8 GiB",
     "b200-sxm-8",
     Kind::all_reduce,
     CurveKeys::gpus,
     CurveUnit::bus,
     kEight,
     {}},
    {kH200, "by_gpus_8GiB.b200_ring", "the same by ring (B200)", "b200-sxm-8", Kind::all_reduce,
     CurveKeys::gpus, CurveUnit::bus, kEight, Way::ring},
    {kH200,
     "collectives_16GiB_GBps.all_reduce_nvls",
     "all_reduce of 8 H200, 16 GiB",
     "h200-sxm-8",
     Kind::all_reduce,
     CurveKeys::none,
     CurveUnit::bus,
     kLarge,
     {}},
    {kH200, "collectives_16GiB_GBps.all_reduce_ring", "all_reduce by ring, 16 GiB", "h200-sxm-8",
     Kind::all_reduce, CurveKeys::none, CurveUnit::bus, kLarge, Way::ring},
    {kH200,
     "collectives_16GiB_GBps.all_gather",
     "all_gather of 8 H200, 16 GiB",
     "h200-sxm-8",
     Kind::all_gather,
     CurveKeys::none,
     CurveUnit::bus,
     kLarge,
     {}},
    {kH200,
     "collectives_16GiB_GBps.reduce_scatter",
     "reduce_scatter of 8 H200, 16 GiB",
     "h200-sxm-8",
     Kind::reduce_scatter,
     CurveKeys::none,
     CurveUnit::bus,
     kLarge,
     {}},
    {kP5,
     "allreduce_busbw_GBps",
     "all_reduce between nodes",
     "h100-p5",
     Kind::all_reduce,
     CurveKeys::nodes,
     CurveUnit::bus,
     kLarge,
     {}},
    {kP5,
     "alltoall_GBps",
     "all_to_all between nodes",
     "h100-p5",
     Kind::all_to_all,
     CurveKeys::nodes,
     CurveUnit::bus,
     kLarge,
     {}},
    {kP5,
     "sendrecv_GBps",
     "send and receive between nodes",
     "h100-p5",
     Kind::p2p,
     CurveKeys::nodes,
     CurveUnit::bus,
     kLarge,
     {}},
    {kP5,
     "nvlink4_GBps",
     "send and receive in the node, both ways",
     "h100-p5",
     Kind::p2p,
     CurveKeys::none,
     CurveUnit::both_ways,
     kLarge,
     {}},
    {kP5,
     "latency_us.allreduce",
     "latency of all_reduce",
     "h100-p5",
     Kind::all_reduce,
     CurveKeys::nodes,
     CurveUnit::microseconds,
     kShort,
     {}},
    {kP5,
     "latency_us.alltoall",
     "latency of all_to_all",
     "h100-p5",
     Kind::all_to_all,
     CurveKeys::nodes,
     CurveUnit::microseconds,
     kShort,
     {}},
    {kP5,
     "latency_us.sendrecv",
     "latency of send and receive",
     "h100-p5",
     Kind::p2p,
     CurveKeys::nodes,
     CurveUnit::microseconds,
     kShort,
     {}},
    {kDeepSeek,
     "deepep_GBps_per_gpu",
     "DeepEP's all_to_all, a device's 400 Gbit/s port",
     "h200-sxm-8",
     Kind::p2p,
     CurveKeys::nodes,
     CurveUnit::bus,
     kLarge,
     {}},
};

const ClusterSpec& cluster_of_rule(std::string_view name) {
  if (const ClusterSpec* c = shipped_cluster(name)) return *c;
  run_failed("cluster {} is not compiled in", name);
}

// The number that text begins with, and what follows it.
std::optional<double> leading_number(std::string_view& text) {
  double d = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), d);
  if (wrong != std::errc() || !std::isfinite(d) || d < 0) return {};
  text.remove_prefix(size_t(end - text.data()));
  return d;
}

// 320, "320-350", ">40".
std::optional<std::pair<double, double>> range_of(const Microbench& j) {
  if (j.is_number()) return std::pair(j.get<double>(), j.get<double>());
  if (!j.is_string()) return {};
  const std::string whole = j.get<std::string>();
  std::string_view text = whole;
  const bool least = text.starts_with('>');
  if (least) text.remove_prefix(1);
  const std::optional<double> low = leading_number(text);
  if (!low) return {};
  if (least) return std::pair(*low, std::numeric_limits<double>::infinity());
  if (!text.starts_with('-')) return std::pair(*low, *low);
  text.remove_prefix(1);
  const std::optional<double> high = leading_number(text);
  return high && *high >= *low ? std::optional(std::pair(*low, *high)) : std::nullopt;
}

// "64KiB" -> bytes; none below a byte, and none that 64 bits do not hold.
std::optional<double> bytes_of(std::string_view text) {
  const std::optional<double> n = leading_number(text);
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB"};
  for (size_t i = 0; n && i < std::size(kUnits); i++)
    if (const double bytes = n.value_or(0) * std::pow(1024., double(i));
        text == kUnits[i] && bytes >= 1 && bytes <= 1e18)
      return bytes;
  return {};
}

// "2 nodes", "3-16 nodes" (3, 4, 8, 16), "5+ nodes" (5, 8, 16).
std::vector<int64_t> counts_of(std::string_view text, int64_t least, int64_t most) {
  const std::optional<double> first = leading_number(text);
  if (!first || *first < double(least) || *first > double(most)) return {};
  const int64_t low = int64_t(*first);
  int64_t high = low;
  if (text.starts_with('+')) high = most;
  if (text.starts_with('-')) {
    text.remove_prefix(1);
    const std::optional<double> last = leading_number(text);
    if (!last || *last < double(low) || *last > double(most)) return {};
    high = int64_t(*last);
  }
  std::vector<int64_t> out = {low};
  for (int64_t n = 1; n < high; n *= 2)
    if (n > low) out.push_back(n);
  if (high > low) out.push_back(high);
  return out;
}

class Curves {
 public:
  Curves(std::string_view file, CurveScore& score) : file_(file), score_(score) {}

  void add(const CurveRule& rule, const Microbench& at) {
    const ClusterSpec& c = cluster_of_rule(rule.cluster);
    Curve curve{.name = std::string(rule.name),
                .where = std::string(rule.cluster),
                .unit = rule.measure == CurveUnit::microseconds ? "us" : "GB/s"};
    if (!at.is_object() && rule.keys == CurveKeys::size)
      bad_request(
          "{}: {} {} is {}, and nothing says of how many bytes; right is an object by size, as {{\"1GiB\": "
          "300}}",
          file_, rule.section, rule.path, printable(at.dump()));
    if (!at.is_object()) {
      const bool across = rule.keys == CurveKeys::nodes;  // of a number alone: between two nodes
      add_point(curve, rule, c, across ? "2 nodes" : fmt::format("{} GPUs", in_node(rule, c)), at,
                across ? across_nodes(rule, c, 2) : std::vector<int64_t>{in_node(rule, c)}, rule.bytes);
      score_.curves.push_back(curve);
      return;
    }
    std::vector<std::pair<double, std::string>> keys;  // by size or count, not by name
    for (const auto& [key, value] : at.items()) {
      std::string_view number = key;
      keys.emplace_back(
          rule.keys == CurveKeys::size ? bytes_of(key).value_or(0) : leading_number(number).value_or(0), key);
    }
    std::sort(keys.begin(), keys.end());
    for (const auto& [order, key] : keys) add_key(curve, rule, c, key, at[key]);
    if (!curve.points.empty()) score_.curves.push_back(curve);
  }

 private:
  std::string_view file_;
  CurveScore& score_;

  static int64_t in_node(const CurveRule& rule, const ClusterSpec& c) {
    return rule.kind == Kind::p2p ? 2 : c.devices_per_node;
  }
  // A message goes from one node to the next, while all devices of both send.
  static std::vector<int64_t> across_nodes(const CurveRule& rule, const ClusterSpec& c, int64_t nodes) {
    if (rule.kind == Kind::p2p) return nodes > 1 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{2};
    return {c.devices_per_node, nodes};
  }

  void add_key(Curve& curve, const CurveRule& rule, const ClusterSpec& c, const std::string& key,
               const Microbench& value) {
    if (rule.keys == CurveKeys::size) {
      const std::optional<double> bytes = bytes_of(key);
      if (!bytes) unread(key);
      return add_point(curve, rule, c, human_bytes(int64_t(*bytes)), value, {c.devices_per_node}, *bytes);
    }
    const bool by_gpus = rule.keys == CurveKeys::gpus;
    // A GPU alone sends nothing; a node alone has several.
    const std::vector<int64_t> counts =
        by_gpus ? counts_of(key, 2, c.devices_per_node) : counts_of(key, 1, c.nodes);
    if (counts.empty()) unread(key);
    // Another way of the library to send is a curve of its own.
    Curve own{.name = curve.name, .where = curve.where, .unit = curve.unit};
    const size_t open = key.find('(');
    if (open != std::string::npos) {
      own.name += ", " + printable(key.substr(open + 1, key.find(')') - open - 1));
      own.note = "the library's choice: the other half of the port is idle";
    }
    Curve& to = open == std::string::npos ? curve : own;
    for (const int64_t n : counts) {
      const std::string at = fmt::format("{} {}{}", n, by_gpus ? "GPU" : "node", n == 1 ? "" : "s");
      add_point(to, rule, c, at, value, by_gpus ? std::vector<int64_t>{n} : across_nodes(rule, c, n),
                rule.bytes);
    }
    if (open != std::string::npos) score_.curves.push_back(own);
  }

  void add_point(Curve& curve, const CurveRule& rule, const ClusterSpec& c, std::string at,
                 const Microbench& value, std::vector<int64_t> counts, double bytes) {
    const auto range = range_of(value);
    if (!range || range->first < kLeast)
      bad_request("{}: {} {}, {}: {} is no measurement; right is as 320, \"320-350\" or \">40\"", file_,
                  rule.section, rule.path, at, printable(value.dump()));
    const Placement p{.counts = std::move(counts)};
    CollectiveTime t = collective_time(rule.kind, bytes, p, c);
    if (rule.way) t = {collective_seconds(rule.kind, *rule.way, bytes, p, c).value_or(0), *rule.way};
    const double bus = bus_bandwidth(rule.kind, bytes, p.size(), t.seconds) / 1e9;
    curve.points.push_back({.at = std::move(at),
                            .way = std::string(name_of(t.way)),
                            .predicted = rule.measure == CurveUnit::microseconds ? t.seconds * 1e6
                                         : rule.measure == CurveUnit::both_ways  ? 2 * bus
                                                                                 : bus,
                            .low = range->first,
                            .high = range->second});
  }
  [[noreturn]] void unread(std::string_view key) const {
    bad_request("{}: {} is no size or count that is known here (docs/score.md)", file_, printable(key));
  }
};

const Microbench* find_path(const Microbench& section, std::string_view path) {
  const Microbench* at = &section;
  while (!path.empty()) {
    const size_t dot = path.find('.');
    const std::string key(path.substr(0, dot));
    if (!at->is_object() || !at->contains(key)) return nullptr;
    at = &(*at)[key];
    path.remove_prefix(dot == std::string_view::npos ? path.size() : dot + 1);
  }
  return at;
}

}  // namespace

bool is_collective_section(std::string_view section) {
  return section.starts_with(kSelene) ||
         std::any_of(std::begin(kRules), std::end(kRules),
                     [&](const CurveRule& r) { return r.section == section; });
}

void score_collectives(const Microbench& all, std::string_view file, CurveScore& score) {
  Curves curves(file, score);
  for (const CurveRule& rule : kRules)
    if (all.contains(std::string(rule.section)))
      if (const Microbench* at = find_path(all[std::string(rule.section)], rule.path)) curves.add(rule, *at);
  for (const auto& [section, value] : all.items()) {
    if (section == kDeepSeek)
      score.left_out.push_back({section + ", latencies", "taken over into the cluster files as they are"});
    if (section.starts_with(kSelene))
      score.left_out.push_back(
          {printable(section), "all groups of a run of 384 nodes at once, sizes not given"});
  }
}

}  // namespace trireme
