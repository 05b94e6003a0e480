// The kernels of src/device/cuda on a processor, as a device of the op harness.
#pragma once
#include <span>

#include "device/device.h"

namespace trireme {

inline constexpr std::string_view kEmulatedCuda = "cuda-emulated", kEmulatedSm90 = "cuda-emulated-sm90";

// Memory, copies and streams are the CPU's. Every launch shuffles blocks and threads another way.
// sm90: it is a Hopper: attention takes the kernels for sm_90a, tensor cores multiply 8 bits.
// require_fp8: as DeviceOptions'.
std::unique_ptr<Device> make_emulated_device(bool sm90 = false, bool require_fp8 = false);

// launches.h's fold_pieces, which only communicators' threads call; by whole threads in another order each
// time.
void emulated_fold_pieces(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n,
                          DType, bool max, uint64_t order);

}  // namespace trireme
