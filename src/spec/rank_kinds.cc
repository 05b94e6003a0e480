#include "spec/rank_kinds.h"

#include <fmt/format.h>

#include <algorithm>

#include "mesh/mesh.h"

namespace trireme {
namespace {

// By kind: ranks that its machines and those before have.
std::vector<int64_t> ends_of(const ClusterSpec& c) {
  std::vector<int64_t> ends;
  int64_t nodes = 0;
  for (const KindSpec& k : c.kinds) ends.push_back((nodes += k.nodes) * c.devices_per_node);
  return ends;
}

// Ranks beyond the cluster's devices may have any kind: {first, last}.
std::pair<int64_t, int64_t> kinds_of_rank(const std::vector<int64_t>& ends, int64_t rank) {
  const auto at = std::upper_bound(ends.begin(), ends.end(), rank);
  const auto count = int64_t(ends.size());
  if (at == ends.end()) return {0, count - 1};
  return {at - ends.begin(), at - ends.begin()};
}

// Devices of each kind that n ranks use.
std::vector<int64_t> used_of(const ClusterSpec& c, int64_t ranks) {
  std::vector<int64_t> used;
  int64_t at = 0;
  for (const int64_t end : ends_of(c)) {
    used.push_back(std::max<int64_t>(0, std::min(ranks, end) - at));
    at = end;
  }
  return used;
}

void add_devices(std::string& s, int64_t devices, const KindSpec& k, std::string_view between) {
  if (devices > 0) s += fmt::format("{}{} x {}", s.empty() ? "" : between, devices, k.name);
}

}  // namespace

ClusterSpec with_kinds(ClusterSpec c, size_t first, size_t last) {
  const std::vector<KindSpec> kinds(c.kinds.begin() + std::ptrdiff_t(first),
                                    c.kinds.begin() + std::ptrdiff_t(last) + 1);
  const auto least = [&](auto of) {
    auto value = of(kinds[0]);
    for (const KindSpec& k : kinds) value = std::min(value, of(k));
    return value;
  };
  c.peak.f32 = least([](const KindSpec& k) { return k.peak.f32; });
  c.peak.bf16 = least([](const KindSpec& k) { return k.peak.bf16; });
  c.peak.f16 = least([](const KindSpec& k) { return k.peak.f16; });
  c.peak.fp8 = least([](const KindSpec& k) { return k.peak.fp8; });
  c.peak.fp4 = least([](const KindSpec& k) { return k.peak.fp4; });
  c.memory_bytes = least([](const KindSpec& k) { return k.memory_bytes; });
  c.memory_bandwidth = least([](const KindSpec& k) { return k.memory_bandwidth; });
  c.host_bandwidth = least([](const KindSpec& k) { return k.host_bandwidth; });
  c.kinds = kinds;
  return c;
}

ClusterSpec used_kinds(const ClusterSpec& c, int64_t ranks) {
  if (c.kinds.size() < 2 || ranks <= 0 || ranks > ends_of(c).back()) return c;
  const std::vector<int64_t> used = used_of(c, ranks);
  size_t last = 0;
  double price = 0;
  double watts = 0;
  bool prices = false;
  bool powers = false;
  for (size_t k = 0; k < used.size(); k++) {
    if (used[k] > 0) last = k;
    const double share = double(used[k]) / double(ranks);
    price += share * c.kinds[k].price_per_hour;
    watts += share * c.kinds[k].watts;
    prices |= c.kinds[k].price_per_hour > 0;
    powers |= c.kinds[k].watts > 0;
  }
  ClusterSpec some = with_kinds(c, 0, last);
  some.kinds[last].nodes = (used[last] - 1) / c.devices_per_node + 1;
  if (prices) some.price_per_hour = price;
  if (powers) some.power.device = watts;
  return some;
}

std::string used_devices_text(const ClusterSpec& c, int64_t ranks, std::string_view between) {
  std::string s;
  const std::vector<int64_t> used = used_of(c, ranks);
  for (size_t k = 0; k < used.size(); k++) add_devices(s, used[k], c.kinds[k], between);
  return s;
}

std::string unused_devices_text(const ClusterSpec& c, int64_t ranks) {
  std::string s;
  const std::vector<int64_t> used = used_of(c, ranks);
  for (size_t k = 0; k < used.size(); k++)
    add_devices(s, c.kinds[k].nodes * c.devices_per_node - used[k], c.kinds[k], ", ");
  return s;
}

NumberList kinds_of_ranks(const ClusterSpec& c, const LayoutSpec& l) {
  const std::vector<int64_t> ends = ends_of(c);
  const Mesh mesh = mesh_of(l);
  const auto count = int64_t(ends.size());
  std::vector<int64_t> first(size_t(l.pp), count);
  std::vector<int64_t> last(size_t(l.pp), 0);
  for (int r = 0; r < mesh.world(); r++) {
    const auto p = size_t(mesh.coord(r, Axis::pp));
    const auto [low, high] = kinds_of_rank(ends, r);
    first[p] = std::min(first[p], low);
    last[p] = std::max(last[p], high);
  }
  NumberList numbers;
  for (size_t p = 0; p < first.size(); p++) numbers.push_back(first[p] * count + last[p]);
  return numbers;
}

NumberList memory_of_ranks(const ClusterSpec& c, const LayoutSpec& l) {
  if (c.kinds.size() < 2) return {};
  const auto count = int64_t(c.kinds.size());
  NumberList bytes;
  for (const int64_t n : kinds_of_ranks(c, l))
    bytes.push_back(with_kinds(c, size_t(n / count), size_t(n % count)).memory_bytes);
  return bytes;
}

double peak_of_ranks(const ClusterSpec& c, int64_t ranks, std::string_view dtype) {
  if (c.kinds.size() < 2) return c.peak_flops(dtype) * double(ranks);
  double sum = 0;
  int64_t at = 0;
  const std::vector<int64_t> ends = ends_of(c);
  for (size_t k = 0; k < ends.size() && at < ranks; k++) {
    const int64_t end = std::min(ranks, ends[k]);
    sum += with_kinds(c, k, k).peak_flops(dtype) * double(end - at);
    at = end;
  }
  return sum + c.peak_flops(dtype) * double(ranks - at);
}

}  // namespace trireme
