// Bytes of a training state in closed form.
#pragma once
#include <cstdint>
#include <string_view>

#include "trace/ledger.h"

namespace trireme {

// Bytes of one parameter by bucket, AdamW on one rank. compute: "f32", "bf16" or "f16"; grads: "f32" or
// "bf16".
//   bf16, f16:    weights 2; gradients 2 (bf16) or 4 (f32); optimizer 12 = f32 master weight and two moments
//   f32 compute:  weights 4; gradients 4; optimizer 8 = two moments (the weights are their own master)
// so 16 bytes, or 18 with f32 gradients under bf16 or f16 (ZeRO, Rajbhandari et al. 2020, section 3.1).
BucketBytes state_bytes_per_parameter(std::string_view compute, std::string_view grads);

// The same of `elements` numbers: parameters, or the size of the flat buffers that hold them.
BucketBytes state_bytes(int64_t elements, std::string_view compute, std::string_view grads);

int64_t total(const BucketBytes&);

}  // namespace trireme
