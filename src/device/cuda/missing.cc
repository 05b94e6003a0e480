// Operations that have no CUDA kernel in this version: refused by name. What gets one leaves this file.
#include "device/cuda/launches.h"

namespace trireme::cuda {

#define TRIREME_MISSING(Args)                                                          \
  void cuda_launch(const Args&, const Tensor&, CudaContext&, cudaStream_t) {           \
    bad_request("op '{}' has no CUDA kernel in this version of trireme", Args::kName); \
  }                                                                                    \
  int64_t cuda_scratch(const Args&) {                                                  \
    return 0;                                                                          \
  }
TRIREME_MISSING(QuantiseArgs)
TRIREME_MISSING(Fp8MatmulArgs)
#undef TRIREME_MISSING

}  // namespace trireme::cuda
