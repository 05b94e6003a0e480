// The CUDA device with what is not for users: make_device("cuda") is the one for them.
#pragma once
#include <memory>
#include <string_view>

#include "device/device.h"

namespace trireme {

// For the op harness. attention_kernel: told at each attention which kernel took it, where not null.
std::unique_ptr<Device> make_cuda_device(const DeviceOptions&, std::string_view* attention_kernel);

}  // namespace trireme
