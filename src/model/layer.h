// What a layer is: parameters declared once, and maths in three passes.
#pragma once
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "mesh/context.h"
#include "tensor/arena.h"
#include "tensor/batch.h"
#include "tensor/param.h"

namespace trireme {

class Fp8Layers;   // fp8.h
class KvCache;     // kv_cache.h
class Routing;     // routing.h
struct Recompute;  // spec/recompute.h

// Ranks that hold parts of the same sequences (context_parallel.h).
struct ContextGroup {
  Communicator* comm = nullptr;  // null: this rank has whole sequences
  Stream stream = {};            // of the ring: what travels while a block is computed
  ContextPlacement placement = ContextPlacement::contiguous;
  bool ulysses = false;

  ContextPlace place() const {
    if (!comm) return {};
    return {.size = comm->size(), .rank = comm->rank(), .placement = placement};
  }
};

// The rank's groups along the axes that divide the rows of layers; null: alone on the axis.
struct LayerGroups {
  // Sums over tp (TensorPlace) are cut in `chunks`, each in flight on this stream while the next is computed;
  // 1: in line.
  int64_t chunks = 1;
  Stream tp_stream = {};
  // Those that divide experts among them, the stream beside compute on which rows travel to them, and how
  // many rows of others a rank has room for at once (expert_exchange.h).
  Communicator* ep = nullptr;
  Stream ep_stream = {};
  int64_t expert_rows = 0;
  // Those that have tokens of the same unit, over which balancing losses are taken (docs/moe.md); the
  // replicas whose microbatches share one capacity.
  Communicator *balance = nullptr, *capacity = nullptr;
  ContextGroup cp;
  double* waited_s = nullptr;  // seconds spent in them, waiting or moving, are added here; may be null
  // Not null: another pass computes meanwhile. Called once a collective has been issued on its own stream,
  // before compute waits for it; returns when this pass continues.
  const std::function<void()>* other_pass = nullptr;
};

// What differs between one use of a layer and the next: training and generation, this microbatch and that.
struct Ctx {
  Device& device;
  Kernels& k;
  Arena& arena;
  Stream compute;
  DType dtype = DType::f32;  // compute type: weights and activations
  BatchView batch;
  bool backward = true;      // will a backward pass follow?
  bool training = false;     // dropout draws, from (seed, step, place, global element index)
  uint64_t seed = 0;         // of the run
  int64_t step = 0;          // of the optimizer, from 1
  float grad_scale = 1;      // gradient of one token's loss: loss scale / target tokens of the global batch
  double loss_scale = 1;     // f16's; 1 in other types
  int64_t batch_tokens = 1;  // of the global batch
  Tensor token_loss;         // f32 [rows], written by the head; or, when `logits` is set,
  Tensor logits;             // f32 or compute dtype [n, vocab], written by the head in place of a loss: of
                             // n rows of the batch: the last ones, or n rows starting at logits_row
  int64_t logits_row = -1;   // -1: the last n
  std::span<const int64_t>
      logits_rows;           // n rows of the batch in any order, in place of the n above; empty: those
  std::string_view& layer;   // which layer runs now, for traces and errors
  KvCache* cache = nullptr;  // generation: keys and values of the tokens before; forward only
  LayerGroups groups = {};
  Routing* routing = nullptr;      // of models of experts while they train
  const Fp8Layers* fp8 = nullptr;  // of passes of training whose linear layers multiply 8-bit floats

  Owned activation(const Shape& s, DType t) { return Owned(arena, Bucket::activations, s, t); }
  Owned activation(const Shape& s) { return activation(s, dtype); }
};

// Tensors that layers save between passes, by their names in the layers.
enum class Kept : uint8_t {
  // clang-format off
  a, back, balance, c_kv, c_q, codes, counts, dbias, ddown, dh, dkv, dlogits, dmid, dn, down, dq, dqkv,
  dropped, du, dweight, dy, exchanged, h, ids, kv, logits, lse, mean, mid, n, n1, n2, o, offsets, order,
  place, q, qk, qkv, rstd, scale, source, u, weights, x, xp, y
  // clang-format on
};

// Tensors of one microbatch between passes. Keys are (layer object, name); owned tensors go back to
// the arena when dropped. Capacity is kept over clear(), so steady steps allocate nothing.
class Saved {
 public:
  void keep(const void* layer, Kept name, Owned t);
  // Remembers a tensor that someone else keeps alive until the layer's backward_weight is done.
  void borrow(const void* layer, Kept name, const Tensor& t);
  Tensor get(const void* layer, Kept name) const;
  bool has(const void* layer, Kept name) const;
  // Gives a kept tensor's memory back until it is made again; what was borrowed of it follows it to its new
  // place. No effect where there is none of that name.
  void let_go(const void* layer, Kept name);
  bool gone(const void* layer, Kept name) const;
  void restore(const void* layer, Kept name, Owned t);
  void drop(const void* layer, Kept name);
  void drop_all(const void* layer);
  void clear() { entries_.clear(); }
  bool empty() const { return entries_.empty(); }

 private:
  struct Entry {
    const void* layer;
    Kept name;
    Owned owned;
    Tensor view;
    bool gone = false;
    // Of a view of a tensor that is gone: whose, and from which byte on.
    const void* of_layer = nullptr;
    Kept of_name = {};
    int64_t at = 0;
  };
  const Entry* find(const void* layer, Kept name) const;
  std::vector<Entry> entries_;
};

// The three passes. x and dy belong to the caller, who keeps them alive until backward_weight is done (layers
// keep views of them). Activations are [rows, features] with rows = sequences * seq.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual std::string_view name() const = 0;
  // The only source of parameter names, shapes, sharding and initial values.
  virtual void declare(std::vector<ParamDecl>&) const = 0;
  virtual void bind(ParamSet&) = 0;  // after memory was bound to the set; the set outlives the layer
  virtual Owned forward(Ctx&, const Tensor& x, Saved&) = 0;
  // The critical path: returns dx and keeps only what backward_weight needs.
  virtual Owned backward_input(Ctx&, const Tensor& dy, Saved&) = 0;
  // Adds into the gradients and drops the rest.
  virtual void backward_weight(Ctx&, Saved&) = 0;
  // After forward: lets go of the saved tensors of that choice which again() makes from the rest, bit for
  // bit, before backward_input.
  virtual void let_go(const Recompute&, Saved&) const {}
  virtual void again(Ctx&, const Tensor& x, Saved&) { static_cast<void>(x); }
};

// Adds one microbatch's contribution, computed in f32, into a gradient of f32 or bf16.
void add_gradient(Ctx&, Param&, const Tensor& contribution);

}  // namespace trireme
