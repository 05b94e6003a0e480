// What model, optim, checkpoint and runtime share about parameters.
#pragma once
#include <span>
#include <string>
#include <utility>
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
  bool hidden_matrix = false;  // two dims, from one hidden layer to the next: what Muon orthogonalises
  std::string tied_to;         // not empty: shares that parameter's storage, and is never stored itself
  std::vector<Axis> sum_grad;  // axes on which the gradient is a partial sum
  std::string linear;          // of a matrix of a linear layer: the layer, whose matrices one product takes
  bool expert = false;         // of an expert: replicas of it are along edp, not dp
  // Tied over stages: the last stage has a copy of what the first one has, by the same name. Each computes a
  // summand of the gradient; where shared, a unit of its own, so both sides divide it alike.
  bool shared = false, copy = false;
  // Not trained: it has no gradient, no optimizer state and no master copy (lora.rank).
  bool frozen = false;
  // The factor alpha / rank of an adapter's product, set for its A and B (model/adapters.h); 0: no adapter.
  float adapter_scale = 0;
  // No parameter: f32 state of the model that has no gradient and that no optimizer sees, whole on every rank
  // (the bias by which a router balances its experts). In checkpoints and exports like parameters.
  bool buffer = false;
};

// A parameter on this rank. Weight and grad are views into flat buffers (row-major box, same offset in each);
// null while nobody holds the whole of them (ZeRO 2 and 3).
struct Param {
  ParamDecl decl;
  Slice box;     // what this rank has of it
  Shape stored;  // of the views: the box, with the zero rows that complete a ragged one
  // Where several ranks along an axis hold the same (ParamDecl::shard), the first of them answers for it: in
  // checkpoints and the gradient norm.
  bool answers = true;
  int64_t offset = 0;  // elements from the start of the flat layout
  Tensor weight;       // compute dtype
  Tensor grad;         // f32 or bf16
  // Whether the gradient holds a sum already: the first contribution writes, later ones add.
  bool grad_started = false;
  // For a contribution. Returns what grad_started was.
  bool start_grad() { return std::exchange(grad_started, true); }
  int64_t numel() const { return box.extent.numel(); }
  // Of this rank's buffer, laid out as the set is.
  Tensor view(const Tensor& flat, int64_t at) const {
    return flat.narrow(0, at, stored.numel()).view(stored);
  }
};

// Neighbouring parameters that are gathered, reduced and updated together: those of one layer (the unit of
// FSDP; Zhao et al. 2023, arXiv 2304.11277, section 3.2). Where ep or tp is above 1 a layer's experts, whose
// replicas are other ranks, are a unit of their own behind the rest.
struct Unit {
  size_t layer = 0;            // number of the list of declarations that it comes from
  bool experts = false;        // of a layer of which the rest is another unit
  bool shared = false;         // likewise: what is tied to another stage (ParamDecl::shared)
  bool frozen = false;         // likewise: what is not trained; only flat buffers of weights have it
  size_t first = 0, last = 0;  // parameters [first, last) of the set
  int64_t offset = 0;          // elements from the start of the flat layout
  int64_t numel = 0;           // of its parameters
  int64_t padded = 0;          // that it takes in the flat layout; what lies beyond numel is zero
  int64_t part_offset = 0;     // where a rank's part of it lies in a buffer of parts
  int64_t others = 0;          // of its parameters that are no hidden matrices
};

// The parameters of a rank in declaration order. The flat layout is unit behind unit, `numel` elements in
// all; inside a unit it is one box behind the other. Weights, gradients, master copies and moments all follow
// it. Units that are trained come first, so that the buffers of what frozen units lack are a beginning of it.
struct ParamSet {
  std::vector<Param> params;
  std::vector<Param> buffers;  // ParamDecl::buffer: memory of their own, outside the flat layout
  std::vector<Unit> units;
  bool divided = false;    // over ranks of tp, or with copies: some parameters lie on several ranks
  int shards = 1;          // ranks that may divide each unit among them, in equal parts;
  int expert_shards = 1;   // of units of experts
  int64_t numel = 0;       // of the flat layout
  int64_t part = 0;        // of one rank's parts of all units
  int64_t parameters = 0;  // without padding
  // Sizes of the flat layout, and of one rank's parts of it, without frozen units.
  int64_t trained = 0, trained_part = 0;

  // Layers find the unit's weights or gradients in `whole` [padded] from now on; an empty tensor: nowhere.
  void show(size_t unit, Tensor Param::*view, const Tensor& whole);
  void mark_grads(const Unit& u, bool started) {
    for (size_t i = u.first; i < u.last; i++) params[i].grad_started = started;
  }
  Param* find(std::string_view name);  // buffers too
  const Param* find(std::string_view name) const;
  std::vector<const Param*> held() const;  // parameters, then buffers
  // Parameters that are not frozen, then buffers: checkpoints hold these.
  std::vector<const Param*> saved() const;
};

// Elements that a unit of `numel` takes: dense for one shard, else shards equal parts of whole blocks.
int64_t padded_unit(int64_t numel, int shards);

// Lays the boxes out one behind the other, so that neighbours (q, k, v; gate, up) are one matrix; a box with
// rows to complete it comes last in its unit, which is padded with them; tied declarations get no storage
// (their Param is the one they are tied to). One unit a list of declarations, or two (Unit::experts). Weight
// and grad views are null until the runtime binds memory.
ParamSet lay_out(std::span<const std::vector<ParamDecl>> units, const Mesh&, int rank, int shards = 1,
                 int expert_shards = 1);
// All of them one unit.
ParamSet lay_out(const std::vector<ParamDecl>&, const Mesh&, int rank);

// Where a rank stands among those that share a training state: each unit is divided among `shards` ranks, and
// `replicas` ranks hold the same part.
struct ShardPlace {
  int shards = 1, shard = 0;
  int replicas = 1, replica = 0;
};
// Of the unit's elements (0 = its first), padding included: the part that is this rank's,
Range own_part(const Unit&, const ShardPlace&);
// and what of it this rank answers for (gradient norm, checkpoints) where replicas have the same: whole
// blocks, as even as they allow. Every element is exactly one rank's.
Range own_share(const Unit&, const ShardPlace&);

// A buffer of what is no hidden matrix: unit behind unit, of each the rank's own elements of such parameters
// one behind the other. Its size, the same on every rank, and where the rank's elements of a parameter lie.
int64_t others_numel(const ParamSet&, int shards);
Range others_range(const ParamSet&, const Unit&, const ShardPlace&, size_t param);
// Elements of a parameter that lie in a range of its unit.
Range inside(const Param&, const Unit&, const Range& of_unit);

// A tensor of the state that an optimizer keeps per parameter ("exp_avg"): planner and checkpoint know it.
struct StateDecl {
  std::string name;
  DType dtype = DType::f32;
  bool of_hidden = true;  // false: hidden matrices have none (others_range)
  bool has(const ParamDecl& d) const { return !d.frozen && (of_hidden || !d.hidden_matrix); }
};

}  // namespace trireme
