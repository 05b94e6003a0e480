// Newton-Schulz iterations of whole matrices on the CPU, for Muon (optim/newton_schulz.h).
#pragma once
#include <cstdint>

namespace trireme::cpu {

// True for f32 matrices that OrthogonaliseArgs takes here: their products are our own (gemm.h), whose bits
// depend on no thread count. A function of the size and of the processor.
bool orthogonalises(int64_t rows, int64_t cols);

}  // namespace trireme::cpu
