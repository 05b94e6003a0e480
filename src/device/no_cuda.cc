// Stands in for src/device/cuda where trireme is built without CUDA.
#include "device/device.h"

namespace trireme {

std::unique_ptr<Device> make_cuda_device(const DeviceOptions&) {
  bad_request("this trireme was built without CUDA; devices that are here: cpu, meta");
}

}  // namespace trireme
