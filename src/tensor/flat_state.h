// Weights, gradients, master copies and moments of a rank.
#pragma once
#include <vector>

#include "tensor/param.h"

namespace trireme {

// The flat buffers of a rank, in the order of the set. Each is whole ([set.numel]) or this rank's shard of it
// ([set.part]: its own part of every unit, contiguous).
struct FlatState {
  Tensor weights;  // compute dtype
  Tensor grads;    // f32 or bf16
  Tensor master;   // f32; the weights themselves when the compute dtype is f32
  // As Optimizer::state() declares. One that hidden matrices have none of is laid out by others_range().
  std::vector<Tensor> state;
  ShardPlace place, experts;  // this rank's: of units, and of those of experts

  const ShardPlace& place_of(const Unit& u) const { return u.experts ? experts : place; }
  // This rank's own part of a unit, [padded / shards]; `buffer` is one of the above that all parameters have.
  Tensor own(const Tensor& buffer, const ParamSet&, const Unit&) const;
  // Buffers of weights have all units, the others those that are trained.
  bool has(const Tensor& buffer, const Unit& u) const { return !u.frozen || buffer.data == weights.data; }
  bool whole(const Tensor& buffer, const ParamSet& set) const {
    return buffer.numel() == (buffer.data == weights.data ? set.numel : set.trained);
  }
};

}  // namespace trireme
