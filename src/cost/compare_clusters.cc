#include "cost/compare_clusters.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "cost/collective_time.h"
#include "spec/walk.h"

namespace trireme {
namespace {

constexpr double kGibibyte = 1 << 30;
constexpr int64_t kNeighbours = 8;

std::optional<double> number_in(const std::string& text) {
  double d = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), d);
  return wrong == std::errc() && end == text.data() + text.size() ? std::optional(d) : std::nullopt;
}

// What says whose the numbers are, and what bench measured of kernels: no figures of the machine's listing.
bool of_listing(const std::string& key) {
  return key != "name" && key != "source" && key != "date" && !key.starts_with("alone.") &&
         !key.starts_with("together.");
}

std::vector<KeyDifference> differences_of(const ClusterSpec& a, const ClusterSpec& b) {
  std::vector<KeyDifference> out;
  std::map<std::string, FieldText> others;
  for (const FieldText& f : fields_of(b)) others.emplace(f.key, f);
  for (const FieldText& f : fields_of(a)) {
    const auto other = others.find(f.key);
    const std::string theirs = other == others.end() ? "" : other->second.value;
    if (other != others.end()) others.erase(other);
    if (!of_listing(f.key) || f.value == theirs) continue;
    KeyDifference d{.key = f.key, .unit = std::string(f.unit), .a = f.value, .b = theirs, .ratio = {}};
    const std::optional<double> x = number_in(d.a), y = number_in(d.b);
    if (x && y && *x != 0 && *y != 0) d.ratio = *y / *x;
    out.push_back(std::move(d));
  }
  for (const FieldText& f : fields_of(b))
    if (others.count(f.key) && of_listing(f.key))
      out.push_back({.key = f.key, .unit = std::string(f.unit), .a = "", .b = f.value, .ratio = {}});
  return out;
}

// One side of a consequence.
struct ClusterSide {
  std::optional<double> value;
  std::string how;
};

bool joined_by_links(const ClusterSpec& c, const Placement& p) {
  const std::vector<TierSpec> levels = c.levels();
  for (size_t i = 0; i < p.counts.size(); i++)
    if (p.counts[i] > 1 && (i == 0 ? c.intra_node : levels[i - 1].link).bandwidth <= 0) return false;
  return true;
}

ClusterSide all_reduce(const ClusterSpec& c, double bytes, int64_t devices) {
  if (devices < 2 || devices > c.devices()) return {};
  const Placement p = place(c, devices);
  if (!joined_by_links(c, p)) return {};
  const CollectiveTime t = collective_time(CollectiveKind::all_reduce, bytes, p, c);
  return {t.seconds, fmt::format("{}, {} devices", name_of(t.way), devices)};
}
// Where a device is its own node, as a TPU chip is, eight make one here.
ClusterSide gradient_sum(const ClusterSpec& c) {
  const int64_t node = c.devices_per_node > 1 ? c.devices_per_node : kNeighbours;
  return all_reduce(c, kGradientBytes, c.devices() >= kGradientNodes * node ? kGradientNodes * node : 0);
}

// Seconds of a device's part of a step, and the share of them that computes when gradients are summed after.
ClusterSide computing_seconds(const ClusterSpec& c) {
  if (c.peak.bf16 <= 0) return {};
  return {6 * kGradientParameters * kStepTokens / (kReach * c.peak.bf16), ""};
}
ClusterSide effective_share(const ClusterSpec& c) {
  const ClusterSide work = computing_seconds(c), sums = gradient_sum(c);
  if (!work.value || !sums.value) return {};
  return {kReach * *work.value / (*work.value + *sums.value), ""};
}
ClusterSide effective_price(const ClusterSpec& c) {
  const ClusterSide share = effective_share(c);
  if (!share.value || c.price_per_hour <= 0) return {};
  return {c.price_per_hour / (c.peak.bf16 * *share.value / 1e15), ""};
}

ClusterSide quotient(double x, double y) {
  if (x <= 0 || y <= 0) return {};
  return {x / y, ""};
}
// Bytes/s that a device has of its node's link, all devices talking.
double network_share(const ClusterSpec& c) {
  const LinkSpec link = c.between_nodes();
  return c.nodes > 1 ? link.bandwidth * link.efficiency / double(c.devices_per_node) : 0;
}

}  // namespace

std::optional<double> Consequence::ratio() const {
  if (!a || !b || *a == 0) return {};
  return *b / *a;
}

ClusterComparison compare_clusters(const ClusterSpec& a, const ClusterSpec& b) {
  ClusterComparison out{.differences = differences_of(a, b), .consequences = {}};
  const auto add = [&](std::string what, std::string unit, auto&& side) {
    const ClusterSide x = side(a), y = side(b);
    out.consequences.push_back({std::move(what), std::move(unit), x.value, y.value, x.how, y.how});
  };
  add(fmt::format("all_reduce of 1 GiB, {} neighbours", kNeighbours), "s",
      [](const ClusterSpec& c) { return all_reduce(c, kGibibyte, kNeighbours); });
  add("all_reduce of 1 GiB in the whole node", "s",
      [](const ClusterSpec& c) { return all_reduce(c, kGibibyte, c.devices_per_node); });
  add(fmt::format("all_reduce of a 7B's gradients (bf16), {} nodes", kGradientNodes), "s", gradient_sum);
  add("ridge of memory: peak bf16 / memory bandwidth", "FLOP/byte",
      [](const ClusterSpec& c) { return quotient(c.peak.bf16, c.memory_bandwidth); });
  add("ridge of the network: peak bf16 / a device's share", "FLOP/byte",
      [](const ClusterSpec& c) { return quotient(c.peak.bf16, network_share(c)); });
  add(fmt::format("computing {:.0f} tokens of a 7B a device at {:.0f} % of peak", kStepTokens, kReach * 100),
      "s", computing_seconds);
  add("effective share of peak, gradients summed after that", "", effective_share);
  add("price of an effective PFLOP/s", "money/h", effective_price);
  return out;
}

}  // namespace trireme
