// Matrix products that need neither alignment nor a library.
#pragma once
#include "device/cuda/launches.h"

namespace trireme::cuda {

// As MatmulArgs says, whatever the strides.
void simt_matmul(const MatmulArgs&, cudaStream_t);

}  // namespace trireme::cuda
