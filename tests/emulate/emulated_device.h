// The kernels of src/device/cuda on a processor, as a device of the op harness.
#pragma once
#include "device/device.h"

namespace trireme {

inline constexpr std::string_view kEmulatedCuda = "cuda-emulated";

// Memory, copies and streams are the CPU's. Every launch shuffles blocks and threads another way.
std::unique_ptr<Device> make_emulated_device();

// device/cuda/fp8.h's turn_codes, which only cuBLASLt's products call.
void emulated_turn_codes(const Tensor& from, const Tensor& to);

}  // namespace trireme
