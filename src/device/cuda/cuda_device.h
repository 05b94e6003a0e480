// The CUDA device with what is not for users: make_device("cuda") is the one for them.
#pragma once
#include <memory>
#include <string_view>

#include "device/device.h"

namespace trireme {

// For the op harness. sm90_attention: attention goes to attention_sm90*.cu where they take the problem;
// refused on other GPUs than of compute capability 9; until those kernels have run (docs/device.md).
// attention_kernel: told at each attention which kernel took it, where not null.
struct CudaTrial {
  bool sm90_attention = false;
  std::string_view* attention_kernel = nullptr;
};
std::unique_ptr<Device> make_cuda_device(const DeviceOptions&, const CudaTrial&);

}  // namespace trireme
