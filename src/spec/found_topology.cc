#include "spec/found_topology.h"

#include <fmt/core.h>

#include <algorithm>

namespace trireme {

std::string keep_alike(Topology& t, const std::string& pci) {
  const GpuFound* one = gpu_at(t, pci);
  const std::string name = one ? one->name : "";
  std::erase_if(t.gpus, [&](const GpuFound& g) { return name.empty() || g.name != name; });
  return name;
}

std::string add_topology(ClusterSpec& c, const Topology& t) {
  LinkSpec between = c.between_nodes();
  if (!c.tiers.empty() && c.tiers.front().torus()) between = {};  // of one cable of it
  between.reduce_bandwidth = 0;                                   // of switches, which nobody has looked for
  c.nodes = c.devices_per_node = 1;
  c.tiers.clear(), c.inter_node = {};
  if (t.gpus.empty()) {
    c.intra_node = {};
    return "";
  }
  auto least = [&](auto GpuFound::*what) {
    auto x = t.gpus[0].*what;
    for (const GpuFound& g : t.gpus) x = std::min(x, g.*what);
    return x;
  };
  c.devices_per_node = int64_t(t.gpus.size());
  std::string from = fmt::format("{} GPU{} on the bus", t.gpus.size(), t.gpus.size() == 1 ? "" : "s");
  if (const int64_t memory = least(&GpuFound::memory); memory > 0) {
    c.memory_bytes = memory;
    from += "; memory as NVML says";
  }
  const double nvlink = least(&GpuFound::nvlink), pcie = least(&GpuFound::pcie);
  if (t.gpus.size() > 1 && nvlink > 0) {
    c.intra_node.bandwidth = nvlink;
    from += fmt::format("; {:.4g} GB/s of {} NVLinks each, as NVML says", nvlink / 1e9,
                        least(&GpuFound::nvlinks));
  } else if (t.gpus.size() > 1 && pcie > 0) {
    c.intra_node = {.bandwidth = pcie};  // of no NVLink that a vendor's file has
    from += fmt::format("; {:.4g} GB/s of PCIe, as the slots say", pcie / 1e9);
  } else {
    c.intra_node = {};
  }
  double network = 0;
  int up = 0;
  for (const NicFound& n : t.nics) network += n.bandwidth, up += n.bandwidth > 0;
  if (up > 0) {
    c.inter_node = between, c.inter_node.bandwidth = network;
    from += fmt::format("; {:.4g} GB/s of {} network adapter{}, as their ports say", network / 1e9, up,
                        up == 1 ? "" : "s");
  }
  return from;
}

std::string_view vendor_file_of(std::string_view gpu) {
  struct Known {
    std::string_view name, file;
  };
  static constexpr Known kKnown[] = {
      {"GH200", ""},         {"H200 NVL", ""},       {"H200", "h200-sxm-8"},     {"H100 PCIe", "h100-pcie-8"},
      {"H100 NVL", ""},      {"H100", "h100-sxm-8"}, {"A100-SXM", "a100-sxm-8"}, {"GB200", "gb200-nvl72"},
      {"B200", "b200-sxm-8"}};
  for (const Known& k : kKnown)
    if (gpu.find(k.name) != gpu.npos) return k.file;
  return "";
}

}  // namespace trireme
