// Stands in for src/device/cuda where trireme is built without CUDA.
#include "device/cuda/cuda_device.h"

namespace trireme {

std::unique_ptr<Device> make_cuda_device(const DeviceOptions&, std::string_view*) {
  bad_request("this trireme was built without CUDA; devices that are here: cpu, meta");
}
std::unique_ptr<Device> make_cuda_device(const DeviceOptions& options) {
  return make_cuda_device(options, nullptr);
}

}  // namespace trireme
