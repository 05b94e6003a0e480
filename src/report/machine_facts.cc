#include "report/machine_facts.h"

#include <fmt/format.h>

#include <cstdlib>

namespace trireme {
namespace {

using nlohmann::json;

const json* member(const json& j, const char* key) {
  if (!j.is_object()) return nullptr;
  const auto it = j.find(key);
  return it == j.end() ? nullptr : &*it;
}
double number(const json& j, const char* key) {
  const json* v = member(j, key);
  return v && v->is_number() ? v->get<double>() : 0;
}
std::string text(const json& j, const char* key) {
  const json* v = member(j, key);
  return v && v->is_string() ? v->get<std::string>() : std::string();
}

void take_start(MachineFacts& m, const json& start) {
  m.start = start;
  m.host = text(start, "host");
  m.nodes = std::max<int64_t>(1, int64_t(number(start, "nodes")));
  if (const json* machine = member(start, "machine")) {
    const std::string gpu = text(start, "gpu"), cpu = text(*machine, "cpu");
    if (!gpu.empty())
      m.device = gpu;
    else if (!cpu.empty())
      m.device = fmt::format("{}, {:.0f} cores", cpu, number(*machine, "cores"));
    m.memory = int64_t(number(*machine, "memory_bytes"));
  }
  if (const json* versions = member(start, "versions"); versions && versions->is_object())
    for (const auto& [name, version] : versions->items())
      if (version.is_string()) m.versions[name] = version.get<std::string>();
  if (const json* cluster = member(start, "cluster")) {
    m.peak_flops = number(*cluster, "peak_flops");
    m.bandwidth = number(*cluster, "memory_bandwidth");
    m.network = number(*cluster, "link_bandwidth");
    m.price_per_hour = number(*cluster, "price_per_hour");
    if (const auto bytes = int64_t(number(*cluster, "memory_bytes")); bytes > 0) m.memory = bytes;
  }
}

void take_cluster(MachineFacts& m, const ClusterSpec& c, const RunRecord& r) {
  if (m.device.empty()) m.device = c.name;
  if (m.peak_flops == 0 && r.run) m.peak_flops = c.peak_flops(r.run->precision.compute);
  if (m.bandwidth == 0) m.bandwidth = c.memory_bandwidth;
  if (m.memory == 0) m.memory = c.memory_bytes;
  if (m.price_per_hour == 0) m.price_per_hour = c.price_per_hour;
  if (m.network == 0) m.network = m.nodes > 1 ? c.between_nodes().bandwidth : c.intra_node.bandwidth;
}

// MFU = model FLOPs / (seconds x ranks x peak), of which all but the peak are in the run's files.
double peak_by_mfu(const RunRecord& r) {
  const double flops = r.forecast_number("model_flops");
  if (!known(flops) || !r.run) return 0;
  for (const StepLine* s : r.timed())
    if (known(s->mfu) && s->mfu > 0) return flops / (s->step_s * double(r.run->world()) * s->mfu);
  return 0;
}

}  // namespace

MachineFacts machine_facts(const RunRecord& r, const TraceFacts& t, const ClusterSpec* cluster) {
  MachineFacts m;
  if (r.run) m.ranks = r.run->world();
  if (const RunEvent* start = r.last_start()) take_start(m, start->all);
  if (const auto it = t.about.find("machine"); m.device.empty() && it != t.about.end()) m.device = it->second;
  if (cluster) take_cluster(m, *cluster, r);
  if (m.peak_flops == 0) m.peak_flops = peak_by_mfu(r);
  if (const auto it = t.about.find("peak_flops"); m.peak_flops == 0 && it != t.about.end())
    m.peak_flops = std::strtod(it->second.c_str(), nullptr);
  if (!r.run || m.ranks == 1)
    m.interconnect = "one rank: no network";
  else if (r.run->train.comm == "thread")
    m.interconnect = "shared memory (rank threads of one process)";
  else
    m.interconnect = fmt::format("{}, {}", r.run->train.comm,
                                 m.nodes > 1 ? fmt::format("{} nodes", m.nodes) : std::string("one node"));
  if (m.ranks > 1 && m.network > 0) m.interconnect += fmt::format(", {:.3g} GB/s each way", m.network * 1e-9);
  return m;
}

}  // namespace trireme
