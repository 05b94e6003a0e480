#include "device/device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "device/replay.h"

namespace trireme {

std::byte* Device::reserve_host(int64_t bytes) {
  void* p = mmap(nullptr, size_t(std::max<int64_t>(bytes, 1)), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    environment_failed("out of memory: the system refused {} bytes of the host's memory to offload into: {}",
                       bytes, std::strerror(errno));
  return static_cast<std::byte*>(p);
}
void Device::release_host(std::byte* p, int64_t bytes) {
  if (p) (void)munmap(p, size_t(std::max<int64_t>(bytes, 1)));
}

std::unique_ptr<Device> make_device(std::string_view name, const DeviceOptions& options) {
  if (name == "cpu") return make_cpu_device(options);
  if (name == "meta") return make_meta_device(options);
  if (name == "cuda") {
    std::unique_ptr<Device> device = make_cuda_device(options);
    return options.graphs ? make_replay_device(std::move(device)) : std::move(device);
  }
  bad_request("unknown device '{}'; there are cpu, meta (no data) and cuda", name);
}

}  // namespace trireme
