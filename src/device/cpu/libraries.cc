#include "device/cpu/libraries.h"

#include <dnnl.h>
#include <fmt/format.h>

#include "device/cpu/targets.h"  // before Highway: says which targets are compiled

#include <hwy/highway.h>

namespace trireme::cpu {

std::string simd_kernels() {
  // The best target has the lowest bit.
  int64_t there = hwy::SupportedTargets() & HWY_TARGETS;
  return there == 0 ? "none" : hwy::TargetName(int(there & -there));
}

std::string onednn_version() {
  const dnnl_version_t* v = dnnl_version();
  return fmt::format("{}.{}.{}", v->major, v->minor, v->patch);
}

std::string onednn_instructions() {
  switch (dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_sse41:
      return "SSE4.1";
    case dnnl_cpu_isa_avx:
      return "AVX";
    case dnnl_cpu_isa_avx2:
      return "AVX2";
    case dnnl_cpu_isa_avx512_core:
      return "AVX-512";
    case dnnl_cpu_isa_avx512_core_vnni:
      return "AVX-512 VNNI";
    case dnnl_cpu_isa_avx512_core_bf16:
      return "AVX-512 BF16";
    case dnnl_cpu_isa_avx512_core_amx:
      return "AMX";
    default:
      return fmt::format("its own choice ({:#x})", unsigned(dnnl_get_effective_cpu_isa()));
  }
}

}  // namespace trireme::cpu
