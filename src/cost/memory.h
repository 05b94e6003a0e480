// Bytes of a training state in closed form.
#pragma once
#include <cstdint>
#include <string_view>

#include "spec/model_spec.h"
#include "trace/ledger.h"

namespace trireme {

// Bytes of one parameter by bucket, AdamW on one rank. compute: "f32", "bf16" or "f16"; grads and moments:
// "f32" or "bf16".
//   bf16, f16:    weights 2; gradients 2 (bf16) or 4 (f32); optimizer 12 = f32 master weight and two moments
//   f32 compute:  weights 4; gradients 4; optimizer 8 = two moments (the weights are their own master)
// so 16 bytes, or 18 with f32 gradients under bf16 or f16 (ZeRO, Rajbhandari et al. 2020, section 3.1).
// bf16 moments take 4 bytes less: optimizer 8, or 4 in f32.
BucketBytes state_bytes_per_parameter(std::string_view compute, std::string_view grads,
                                      std::string_view moments = "f32");

// The same of `elements` numbers: parameters, or the size of the flat buffers that hold them.
BucketBytes state_bytes(int64_t elements, std::string_view compute, std::string_view grads,
                        std::string_view moments = "f32");

// How ranks divide a training state: `tp` of them each layer's matrices, and of each of these parts replicas
// (ZeRO), `shards` ranks to a shard group.
struct Division {
  int zero = 0;
  int64_t shards = 1;
  int64_t tp = 1;
};

// Elements of the flat layout of a rank's part of the model: each layer's parameters, padded to `shards`
// equal parts of whole blocks of 4,096 where zero > 0 and shards > 1.
int64_t flat_elements(const ModelSpec&, const Division&);

// Of them, what the last layer uses: final norm and head, and the table where that is tied.
int64_t last_layer_elements(const ModelSpec&, const Division&);

// What a rank keeps between steps. With Psi elements, in bf16 with bf16 gradients and N shards: 16 Psi; zero
// 1: 4 Psi + 12 Psi/N; zero 2: 2 Psi + 14 Psi/N; zero 3: 16 Psi/N. f32 computes with its master copies, so
// where weights are whole each rank keeps 4 Psi of them.
BucketBytes state_bytes(const ModelSpec&, std::string_view compute, std::string_view grads, const Division&,
                        std::string_view moments = "f32");

int64_t total(const BucketBytes&);

}  // namespace trireme
