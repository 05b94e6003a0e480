// Names of kernels in reports, for ops that have several (Kernels::last_kernel).
#pragma once
#include <string_view>

namespace trireme::cuda {

// Attention. kSimtKernel is of products too: neither tensor cores nor a library.
inline constexpr std::string_view kSm90Kernel = "sm_90a", kMmaKernel = "mma.sync", kSimtKernel = "simt";
// matmul, matmul_gelu and its backward. A product whose gelu runs apart has the first name.
inline constexpr std::string_view kLibraryKernel = "cuBLASLt", kGeluEpilogue = "cuBLASLt gelu";
// fp8_matmul: 8-bit tensor cores by the kind of scales (squares: one operand of 128 x 128), bf16 tensor
// cores, or plain code (kSimtKernel).
inline constexpr std::string_view kFp8OneScale = "8-bit one", kFp8Vectors = "8-bit vectors",
                                  kFp8Squares = "8-bit squares", kFp8InBf16 = "bf16";

}  // namespace trireme::cuda
