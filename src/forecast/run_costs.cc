#include "forecast/run_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/counted.h"
#include "base/progress.h"
#include "base/units.h"
#include "mesh/mesh.h"
#include "spec/rank_kinds.h"

namespace trireme {

double run_watts(const ClusterSpec& c, int64_t devices) {
  const double per = double(c.devices_per_node);
  return used_kinds(c, devices).power.watts(double(devices), std::ceil(double(devices) / per));
}

std::string power_text(const ClusterSpec& c, int64_t devices) {
  std::string s = decimal(run_watts(c, devices), "W");
  if (c.power.node == 0) s += " of the devices alone (power.node is not stated)";
  if (c.power.device == 0) s += " of the machines alone (power.device is not stated)";
  return s;
}

std::string energy_text(const ClusterSpec& c, int64_t devices, double step_s, double step_tokens) {
  constexpr double kHour = 3600;
  constexpr double kBillion = 1e9;
  const double step_wh = run_watts(c, devices) * step_s / kHour;
  return fmt::format("{}; {} per step, {} per billion tokens", power_text(c, devices), decimal(step_wh, "Wh"),
                     decimal(step_wh / step_tokens * kBillion, "Wh"));
}

std::string checkpoint_text(const CheckpointPlan& p) {
  std::string s = fmt::format("{}, training waits {}", bytes_text(p.bytes), seconds_text(p.stall_s));
  if (p.write_s > 0) s += fmt::format(", written in {}", seconds_text(p.write_s));
  if (p.interval_s > 0)
    s += fmt::format("; save every {} ({}), {:.2g} % of time lost", human_seconds(p.interval_s),
                     counted(p.steps, "step"), 100 * p.lost);
  if (p.stated_steps) s += fmt::format("; train.checkpoint_every = {}", *p.stated_steps);
  if (p.stated_steps && p.stated_lost > 0) s += fmt::format(" loses {:.2g} %", 100 * p.stated_lost);
  if (p.write_s == 0) s += "; storage.bandwidth is not stated";
  if (p.kept > 0)
    s += fmt::format("; storage holds {} checkpoint{}", three_digits(p.kept), p.kept == 1 ? "" : "s");
  else if (p.storage > 0)
    s += fmt::format("; storage of {} CANNOT HOLD ONE checkpoint", decimal(p.storage, "B"));
  return s;
}

nlohmann::ordered_json json_of(const CheckpointPlan& p) {
  nlohmann::ordered_json j = {{"bytes", p.bytes},           {"stall_s", p.stall_s}, {"write_s", p.write_s},
                              {"interval_s", p.interval_s}, {"young_s", p.young_s}, {"steps", p.steps},
                              {"lost_share", p.lost},       {"kept", p.kept}};
  if (p.storage > 0) j["storage_bytes"] = p.storage;
  if (p.stated_steps) j["stated_steps"] = *p.stated_steps;
  if (p.stated_steps && p.stated_lost > 0) j["stated_lost_share"] = p.stated_lost;
  return j;
}

std::string kinds_text(const ClusterSpec& whole, const LayoutSpec& l) {
  if (whole.kinds.size() < 2) return kinds_text(whole);
  const int64_t ranks = mesh_of(l).world();
  const ClusterSpec c = used_kinds(whole, ranks);
  const std::string unused = unused_devices_text(whole, ranks);
  const std::string left = unused.empty() ? "" : "; not used: " + unused;
  if (c.kinds.size() < 2) return used_devices_text(c, ranks) + left;
  const NumberList numbers = kinds_of_ranks(c, l);
  const auto count = int64_t(c.kinds.size());
  if (std::all_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n == count - 1; }))
    return kinds_text(c) + left;
  std::string s;
  for (size_t p = 0, end = 0; p < numbers.size(); p = end) {
    for (end = p; end < numbers.size() && numbers[end] == numbers[p];) end++;
    const int64_t first = numbers[p] / count;
    const int64_t last = numbers[p] % count;
    s += fmt::format("{}{} on {}", s.empty() ? "pipeline ranks " : ", ",
                     end - p > 1 ? fmt::format("{} to {}", p, end - 1) : fmt::format("{}", p),
                     c.kinds[size_t(first)].name);
    for (int64_t k = first + 1; k <= last; k++) s += fmt::format(" and {}", c.kinds[size_t(k)].name);
    if (first < last) s += ", of which the slowest counts";
  }
  return fmt::format("{}: {}{}", used_devices_text(c, ranks, ", "), s, left);
}

std::string kinds_text(const ClusterSpec& c) {
  if (c.kinds.size() < 2) return "";
  const auto by_peak = [](const KindSpec& a, const KindSpec& b) { return a.peak.bf16 < b.peak.bf16; };
  const auto by_memory = [](const KindSpec& a, const KindSpec& b) { return a.memory_bytes < b.memory_bytes; };
  const KindSpec& slow = *std::min_element(c.kinds.begin(), c.kinds.end(), by_peak);
  const KindSpec& small = *std::min_element(c.kinds.begin(), c.kinds.end(), by_memory);
  const KindSpec* fast = nullptr;  // kind whose machines alone have the highest peak
  constexpr int64_t kAllRanks = int64_t(1) << 62;
  double all = 0;
  for (const KindSpec& k : c.kinds) {
    all += double(k.nodes) * slow.peak.bf16;
    if (!fast || double(k.nodes) * k.peak.bf16 > double(fast->nodes) * fast->peak.bf16) fast = &k;
  }
  std::string s = fmt::format(
      "{}: steps wait for {} ({}), memory is of {} ({})", used_devices_text(c, kAllRanks, ", "), slow.name,
      decimal(slow.peak.bf16, "FLOP/s"), small.name, bytes_text(double(small.memory_bytes)));
  const double alone = double(fast->nodes) * fast->peak.bf16;
  if (alone > all) s += fmt::format("; {} alone have {:.2f} x the peak of all", fast->name, alone / all);
  return s;
}

}  // namespace trireme
