// Bytes of activations in closed form.
#pragma once
#include <cstdint>

#include "spec/model_spec.h"

namespace trireme {

struct ActivationShape {
  int64_t rows = 0;   // of a microbatch: sequences x tokens
  int64_t bytes = 2;  // of an element of the compute type
  int64_t tp = 1;
  bool sequence = false;  // sequence parallelism
};

// What a block keeps of a microbatch between its forward and its backward pass, its input included
// (docs/tensor_parallel.md derives it; Korthikanti et al. 2022, arXiv 2205.05198, section 4). In 16 bits with
// gpt2's widths, without the attention's statistics: N h (8 + 24 / t), with sequence parallelism N h 32 / t.
int64_t block_activation_bytes(const ModelSpec&, const ActivationShape&);

}  // namespace trireme
