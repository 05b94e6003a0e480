#include "device/device.h"

namespace trireme {

std::unique_ptr<Device> make_device(std::string_view name, const DeviceOptions& options) {
  if (name == "cpu") return make_cpu_device(options);
  if (name == "meta") return make_meta_device(options);
  if (name == "cuda") return make_cuda_device(options);
  bad_request("unknown device '{}'; there are cpu, meta (no data) and cuda", name);
}

}  // namespace trireme
