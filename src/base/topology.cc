#include "base/topology.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <set>

namespace trireme {
namespace {

// Small files of /sys have no size of their own.
std::string small_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::array<char, 256> text{};
  in.read(text.data(), text.size() - 1);
  std::string s(text.data(), size_t(std::max<std::streamsize>(0, in.gcount())));
  while (!s.empty() && (s.back() == '\n' || s.back() == ' ')) s.pop_back();
  return s;
}
// The number that a text begins with; 0 = none, or one that cannot be.
double leading_number(const std::string& text) {
  const double x = std::strtod(text.c_str(), nullptr);
  return x > 0 && x < 1e6 ? x : 0;
}
// Of anything but a number: not known.
int numa_of(const fs::path& device) {
  const std::string text = small_file(device / "numa_node");
  int node = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), node);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && node >= 0 && node < 65536 ? node : -1;
}

// "16.0 GT/s PCIe" and "16" lanes: 8b/10b below 8 GT/s, 128b/130b from there on (PCIe 6 differs by less than
// a tenth).
double pcie_of(const fs::path& device) {
  const double rate = leading_number(small_file(device / "max_link_speed"));
  const double lanes = leading_number(small_file(device / "max_link_width"));
  return rate * 1e9 / 8 * (rate < 8 ? 0.8 : 128.0 / 130) * std::min(lanes, 32.0);
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> all;
  std::error_code ec;
  for (const auto& e : fs::directory_iterator(folder, ec)) all.push_back(e.path());
  std::sort(all.begin(), all.end());
  return all;
}

// "400 Gb/sec (4X NDR)" of each port in state "4: ACTIVE".
NicFound adapter_at(const fs::path& folder) {
  NicFound nic{.name = folder.filename().string(), .pci = {}, .link_layer = {}};
  std::error_code ec;
  const fs::path device = fs::canonical(folder / "device", ec);
  if (!ec) nic.pci = device.filename().string(), nic.numa = numa_of(device);
  for (const fs::path& port : entries_of(folder / "ports")) {
    if (nic.link_layer.empty()) nic.link_layer = small_file(port / "link_layer");
    if (small_file(port / "state").find("ACTIVE") == std::string::npos) continue;
    nic.bandwidth += leading_number(small_file(port / "rate")) * 1e9 / 8;
  }
  return nic;
}

// ---- NVML: declared here, as much of it as is asked (nvml.h 11 and later) ----

struct NvmlPci {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
};
static_assert(sizeof(NvmlPci) == 68);
struct NvmlMemory {
  unsigned long long total, free, used;
};
using NvmlDevice = struct NvmlDeviceHandle*;
struct Nvml {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned, NvmlDevice*) = nullptr;
  int (*name)(NvmlDevice, char*, unsigned) = nullptr;
  int (*pci)(NvmlDevice, NvmlPci*) = nullptr;
  int (*link_state)(NvmlDevice, unsigned link, unsigned* up) = nullptr;
  int (*link_version)(NvmlDevice, unsigned link, unsigned* version) = nullptr;
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;  // null: an older library

  explicit Nvml(void* library) {
    find(library, "nvmlInit_v2", init), find(library, "nvmlShutdown", shutdown);
    find(library, "nvmlDeviceGetCount_v2", count), find(library, "nvmlDeviceGetHandleByIndex_v2", device);
    find(library, "nvmlDeviceGetName", name), find(library, "nvmlDeviceGetPciInfo_v3", pci);
    find(library, "nvmlDeviceGetNvLinkState", link_state),
        find(library, "nvmlDeviceGetNvLinkVersion", link_version);
    find(library, "nvmlDeviceGetMemoryInfo", memory);
  }
  bool whole() const {
    return init && shutdown && count && device && name && pci && link_state && link_version;
  }

 private:
  template <class F>
  static void find(void* library, const char* name, F& f) {
    f = reinterpret_cast<F>(::dlsym(library, name));
  }
};

// Bytes/s each way of one link: 20 GB/s of the first generation, 25 up to the fourth (Hopper), 50 from the
// fifth on (Blackwell), as NVIDIA's whitepapers have it.
double nvlink_rate(unsigned version) {
  return version <= 1 ? 20e9 : version <= 4 ? 25e9 : 50e9;
}

// Its address; "" = not known.
std::string ask_device(const Nvml& nvml, NvmlDevice device, Topology& t) {
  constexpr unsigned kMostLinks = 18;
  // nvml.h's numbers of versions: 1, 2 is 2.0, 3 is 2.2, 4 is 3.0, 5 is 3.1, 6 is 4.0, 7 is 5.0.
  constexpr std::array<unsigned, 8> kGeneration{0, 1, 2, 2, 3, 3, 4, 5};
  NvmlPci pci{};
  if (nvml.pci(device, &pci) != 0) return {};
  std::string address = fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
  auto gpu = std::find_if(t.gpus.begin(), t.gpus.end(), [&](const GpuFound& g) { return g.pci == address; });
  if (gpu == t.gpus.end()) gpu = t.gpus.insert(t.gpus.end(), GpuFound{.pci = address, .name = {}});
  std::array<char, 97> name{};
  if (nvml.name(device, name.data(), unsigned(name.size() - 1)) == 0) gpu->name = name.data();
  if (NvmlMemory m{}; nvml.memory && nvml.memory(device, &m) == 0 && m.total < 1ull << 50)
    gpu->memory = int64_t(m.total);
  for (unsigned link = 0; link < kMostLinks; link++) {
    unsigned up = 0, version = 0;
    if (nvml.link_state(device, link, &up) != 0 || up == 0) continue;
    if (nvml.link_version(device, link, &version) != 0 || version == 0) continue;
    gpu->nvlinks++, gpu->nvlink += nvlink_rate(version < kGeneration.size() ? kGeneration[version] : 5);
  }
  return address;
}

}  // namespace

Topology read_topology(const fs::path& root) {
  Topology t;
  for (const fs::path& device : entries_of(root / "sys/bus/pci/devices")) {
    const std::string kind = small_file(device / "class");  // 0x0300xx: VGA, 0x0302xx: 3D controller
    if (small_file(device / "vendor") != "0x10de" || (kind.find("0x0300") != 0 && kind.find("0x0302") != 0))
      continue;
    t.gpus.push_back(
        {.pci = device.filename().string(), .name = {}, .numa = numa_of(device), .pcie = pcie_of(device)});
  }
  for (const fs::path& adapter : entries_of(root / "sys/class/infiniband"))
    t.nics.push_back(adapter_at(adapter));
  return t;
}

bool ask_nvml(Topology& t, const std::string& file) {
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return false;
  const Nvml nvml(library);
  const bool there = nvml.whole() && nvml.init() == 0;
  unsigned n = 0;
  if (there && nvml.count(&n) == 0) {
    std::set<std::string> listed;
    for (unsigned i = 0; i < std::min(n, 64u); i++)
      if (NvmlDevice device = nullptr; nvml.device(i, &device) == 0)
        listed.insert(ask_device(nvml, device, t));
    std::erase_if(t.gpus, [&](const GpuFound& g) { return !listed.contains(g.pci); });
  }
  if (there) (void)nvml.shutdown();
  ::dlclose(library);
  return there;
}

const GpuFound* gpu_at(const Topology& t, const std::string& pci) {
  using Numbers = std::array<unsigned, 3>;
  auto numbers = [](const std::string& text) -> std::optional<Numbers> {
    Numbers n{};
    if (std::sscanf(text.c_str(), "%x:%x:%x", &n[0], &n[1], &n[2]) != 3) return {};
    return n;
  };
  const std::optional<Numbers> wanted = numbers(pci);
  for (const GpuFound& g : t.gpus)
    if (wanted && numbers(g.pci) == wanted) return &g;
  return nullptr;
}

std::string cluster_lines(const Topology& t) {
  if (t.gpus.empty()) return "";
  auto least = [&](double GpuFound::*what) {
    double x = t.gpus[0].*what;
    for (const GpuFound& g : t.gpus) x = std::min(x, g.*what);
    return x;
  };
  std::string out = fmt::format("devices_per_node = {}\n", t.gpus.size());
  const double nvlink = least(&GpuFound::nvlink), pcie = least(&GpuFound::pcie);
  if (t.gpus.size() > 1 && nvlink > 0)
    out +=
        fmt::format("[intra_node]\nbandwidth = {:.4g}  # {} NVLinks of a GPU, as NVML says\n", nvlink,
                    std::min_element(t.gpus.begin(), t.gpus.end(), [](const GpuFound& a, const GpuFound& b) {
                      return a.nvlink < b.nvlink;
                    })->nvlinks);
  else if (t.gpus.size() > 1 && pcie > 0)
    out += fmt::format("[intra_node]\nbandwidth = {:.4g}  # PCIe, as the slots say\n", pcie);
  double network = 0;
  int up = 0;
  for (const NicFound& n : t.nics) network += n.bandwidth, up += n.bandwidth > 0;
  if (up > 0)
    out += fmt::format("[inter_node]\nbandwidth = {:.4g}  # {} adapter{} of the node, as their ports say\n",
                       network, up, up == 1 ? "" : "s");
  return out;
}

}  // namespace trireme
