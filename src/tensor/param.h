// What model, optim, checkpoint and runtime share about parameters.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "mesh/shard.h"
#include "tensor/tensor.h"

namespace trireme {

// How a weight starts: a function of (seed, name, global element index), so every layout draws the same.
struct Init {
  enum class Kind : uint8_t { zeros, ones, normal } kind = Kind::zeros;
  float std = 0;
};

// One parameter, declared once, by its layer. Names are trireme's own and global ("blocks.3.attn.q.weight").
struct ParamDecl {
  std::string name;
  Shape global;
  ShardSpec shard;
  Init init;
  bool decay = true;           // weight decay: tensors of two or more dims
  std::string tied_to;         // not empty: shares that parameter's storage, and is never stored itself
  std::vector<Axis> sum_grad;  // axes on which the gradient is a partial sum
};

// A parameter on this rank. Weight and grad are views into flat buffers (row-major box, same offset in each).
struct Param {
  ParamDecl decl;
  Slice box;
  int64_t offset = 0;  // elements from the start of every flat buffer
  Tensor weight;       // compute dtype
  Tensor grad;         // f32 or bf16
  // Does the gradient hold a sum yet in this step? The first contribution writes, later ones add.
  bool grad_started = false;
  int64_t numel() const { return box.extent.numel(); }
};

// The parameters of a rank in declaration order, dense: flat buffers hold `numel` elements, one box behind
// the other.
struct ParamSet {
  std::vector<Param> params;
  int64_t numel = 0;

  Param* find(std::string_view name);
  const Param* find(std::string_view name) const;
};

// Lays the boxes out one behind the other, so that neighbours (q, k, v; gate, up) are one matrix; tied
// declarations get no storage (their Param is the one they are tied to). Weight and grad views are null until
// the runtime binds memory.
ParamSet lay_out(std::span<const ParamDecl>, const Mesh&, int rank);

// A tensor of the state that an optimizer keeps per parameter ("exp_avg"): planner and checkpoint know it.
struct StateDecl {
  std::string name;
  DType dtype = DType::f32;
};

}  // namespace trireme
