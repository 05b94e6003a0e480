// Bytes on the wire in closed form (DESIGN.md section 4): between replicas, and between the ranks of a layer.
#pragma once
#include <cstdint>

#include "cost/memory.h"

namespace trireme {

struct ReplicaTraffic {
  Division division;
  int64_t groups = 1;  // shard groups (hybrid sharding); with zero 0 every replica is one
  int64_t microbatches = 1;
  bool reshard_after_forward = true;
  int64_t last_kept = 0;  // microbatches whose backward finds the last layer's weights (reshard_last = false)
  int64_t weight_bytes = 2, reduce_bytes = 2;  // of one element, as it travels
};

// Of one step, all ranks together. With Psi bytes of padded elements and one group of N ranks, N - 1 times:
// zero 0 and 1: 2 Psi; 2: (m + 1) Psi; 3: 3 m Psi, or 2 m Psi where weights stay gathered from F to B.
// Each time the last layer's weights stay (last_kept) its Psi less. With G groups, each of them that, and
// every sum of a shard goes over the groups: 2 (G - 1) Psi more for each reduction. With tp > 1 this is of
// the replicas of one part of the model; there are tp such parts.
int64_t wire_bytes_per_step(const ModelSpec&, const ReplicaTraffic&);

// What the layers of one replica, divided over tp ranks, say to each other in a step.
struct LayerTraffic {
  int64_t tp = 1;
  int64_t rows = 0;  // of a microbatch: sequences x tokens
  int64_t microbatches = 1;
  int64_t activation_bytes = 2, grad_bytes = 4;  // of one element
  int64_t reductions = 1;  // of gradients in a step: 1, or with zero 2 and 3 one a microbatch
  bool sequence = false;   // sequence parallelism
  bool f32 = false;        // compute type: the head keeps no logits (model/head.h)
};
// All tp ranks together. A = rows x hidden activations, t = tp:
//   4 all_reduces of A a block and microbatch (behind the output projection and the feed-forward; in front of
//   q, k, v and of gate, up), one behind the embedding, one in front of the head: (4 L + 2) 2 (t - 1) A;
//   3 f32 numbers a row of logits, gathered: 3 t (t - 1) rows;
//   sums that parameters declare (sum_grad), each reduction: 2 (t - 1) of the elements of shared key/value
//   heads, of the norms of heads, and of what compresses where attention is latent.
// With sequence parallelism the all_reduces are reduce_scatters and all_gathers, half as much each, and as
// many of both; besides, inputs of q, k, v, of gate, up and, but for f32, of the head are gathered again for
// their weights' gradients: (10 L + 4 or 5) (t - 1) A; and norms declare sums.
int64_t layer_wire_bytes_per_step(const ModelSpec&, const LayerTraffic&);
int64_t sum_grad_elements(const ModelSpec&, int64_t tp, bool sequence = false);  // of the whole model

}  // namespace trireme
