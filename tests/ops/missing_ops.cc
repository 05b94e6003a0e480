// Bridge while kernel families are still being written: weak definitions for ops that have none yet.
#include "device/cpu/launch.h"

namespace trireme::cpu {

#define TRIREME_MISSING(Args)                                                     \
  __attribute__((weak)) void launch(const Args&, const Tensor&, const Context&) { \
    run_failed("{} is not written yet", Args::kName);                             \
  }                                                                               \
  __attribute__((weak)) int64_t scratch_bytes(const Args&, const Context&) {      \
    return 0;                                                                     \
  }
TRIREME_OPS(TRIREME_MISSING)
#undef TRIREME_MISSING

}  // namespace trireme::cpu
