// The CUDA device with what is not for users: make_device("cuda") is the one for them.
#pragma once
#include <memory>

#include "device/device.h"

namespace trireme {

// sm90_attention: attention goes to attention_sm90_device.cu where that takes the problem; refused on other
// GPUs than of compute capability 9. For the op harness, until that kernel has run (docs/device.md).
std::unique_ptr<Device> make_cuda_device(const DeviceOptions&, bool sm90_attention);

}  // namespace trireme
