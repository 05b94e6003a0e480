#include "cli/run_facts.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/json.h"
#include "catalog/cluster_device.h"
#include "comm/mpi/mpi_world.h"
#include "device/cpu/libraries.h"

namespace trireme::cli {
namespace {

// The number that a library's own function gives; 0: the library is not there.
int version_number(const char* library, const char* symbol) {
  void* lib = ::dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  if (!lib) return 0;
  int v = 0;
  const auto get = reinterpret_cast<int (*)(int*)>(::dlsym(lib, symbol));
  if (!get || get(&v) != 0) v = 0;
  ::dlclose(lib);
  return v;
}

}  // namespace

std::string run_facts_json(const RunSpec& run, const ClusterSpec& c, int threads) {
  nlohmann::ordered_json versions = {
      {"trireme", TRIREME_VERSION},
      {"oneDNN", fmt::format("{} ({})", cpu::onednn_version(), cpu::onednn_instructions())},
      {"Highway kernels", cpu::simd_kernels()},
      {"compiler", __VERSION__}};
  if (run.train.comm == "mpi" || run.train.comm == "nccl")
    if (const std::string mpi = mpi_version(); !mpi.empty()) versions["MPI"] = mpi;
  if (run.train.device == "cuda") {
    if (const int v = version_number("libcuda.so.1", "cuDriverGetVersion"); v > 0)
      versions["CUDA driver"] = fmt::format("{}.{}", v / 1000, v % 1000 / 10);
    if (const int v = version_number("libnccl.so.2", "ncclGetVersion"); v > 0)
      versions["NCCL"] = std::to_string(v);
  }
  const LinkSpec link = c.nodes > 1 ? c.between_nodes() : c.intra_node;
  nlohmann::ordered_json cluster = {
      {"name", c.name},
      {"peak_flops", c.peak_flops(run.precision.compute)},
      {"memory_bandwidth", c.memory_bandwidth},
      {"memory_bytes", c.memory_bytes},
      {"link_bandwidth", link.bandwidth},
      {"link_latency", link.latency},
      {"disk_bandwidth", c.disk_bandwidth},
      {"price_per_hour", device_of(c, run.precision.compute, run.world()).price_per_hour}};
  nlohmann::ordered_json j = {{"versions", versions},
                              {"cluster", cluster},
                              {"launch",
                               {{"device", run.train.device},
                                {"comm", run.train.comm},
                                {"threads", threads},
                                {"bind", run.train.bind},
                                {"compute", run.precision.compute}}}};
  if (run.train.device == "cuda") j["gpu"] = c.name;
  return j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace trireme::cli
