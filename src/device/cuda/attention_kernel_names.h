// Names of the attention kernels in reports.
#pragma once
#include <string_view>

namespace trireme::cuda {

inline constexpr std::string_view kSm90Kernel = "sm_90a", kMmaKernel = "mma.sync", kSimtKernel = "simt";

}  // namespace trireme::cuda
