// The GPUs and network adapters of this machine and what joins them, as the kernel (/sys) and NVIDIA's
// management library say: read, not measured.
#pragma once
#include <string>
#include <vector>

#include "base/file.h"

namespace trireme {

struct GpuFound {
  std::string pci;     // "0000:1b:00.0"
  std::string name;    // "" = no NVML here
  int numa = -1;       // -1 = not known
  int64_t memory = 0;  // bytes, as NVML says; 0 = not known
  double pcie = 0;     // bytes/s each way of its slot at its best, encoding taken off; 0 = not known
  int nvlinks = 0;     // that are up
  double nvlink = 0;   // bytes/s each way of all of them
};
struct NicFound {
  std::string name;        // "mlx5_0"
  std::string pci;         // "" = not known
  std::string link_layer;  // "InfiniBand", "Ethernet"
  int numa = -1;
  double bandwidth = 0;  // bytes/s each way of the ports that are up
};
struct Topology {
  std::vector<GpuFound> gpus;  // by PCI address
  std::vector<NicFound>
      nics;  // adapters for RDMA (InfiniBand, RoCE, EFA), by name; those without a port that is up too
};

// NVIDIA's GPUs on the PCI bus and RDMA adapters. root: "/" but for tests. Files that are missing or hold
// something else leave their fact unknown.
Topology read_topology(const fs::path& root = "/");

// Adds what NVML knows of these GPUs: names, memory, NVLinks; those that it does not list are another's (a
// container sees the whole bus) and go. False: the library or a driver is not there, and nothing has changed.
bool ask_nvml(Topology&, const std::string& library = "libnvidia-ml.so.1");

// Of the GPU at this address, in either case of letters; null = it was not found.
const GpuFound* gpu_at(const Topology&, const std::string& pci);

// Lines of a cluster file, with where each is from; "" where no GPU was found.
std::string cluster_lines(const Topology&);

}  // namespace trireme
