// Sharded updates of weights from gradients.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "tensor/flat_state.h"

namespace trireme {

struct UpdateInput {
  double lr = 0;
  int64_t step = 1;      // from 1; skipped ones are not counted
  float grad_scale = 1;  // clipping and loss scale, applied to each gradient
};

// Where elements `own` of this rank's part of a unit have their state while they are updated, when that is
// not in FlatState's buffers. f32 [own.size()] each.
struct StatePiece {
  Range own;
  std::span<const Tensor> state;   // as Optimizer::state() declares
  const Tensor* master = nullptr;  // none: FlatState's
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual std::vector<StateDecl> state() const = 0;  // per parameter element: planner and checkpoint read it
  // This rank's own part of one unit.
  virtual void step(Kernels&, const ParamSet&, const Unit&, const FlatState&, const UpdateInput&, Stream) = 0;
  // The same of a piece of it: cut anywhere, bit for bit the same.
  virtual void step_piece(Kernels&, const ParamSet&, const Unit&, const FlatState&, const StatePiece&,
                          const UpdateInput&, Stream) {
    run_failed("this optimizer's state is updated in FlatState's buffers only");
  }
  virtual double waited_s() const { return 0; }  // seconds that updates waited for other ranks, ever
};

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  DType moments = DType::f32;  // or bf16, rounded stochastically
  uint64_t seed = 0;           // seed of the rounding
  double embed_lr = 1;         // factor on the learning rate where has_embed_lr()
  bool tied = false;           // the token embedding is the head too
};
// Whether AdamWOptions::embed_lr applies: norms, biases, and embeddings that are not tied, whose outputs are
// not sums over the width of the model.
bool has_embed_lr(const ParamDecl&, bool tied);

// Weight decay acts on parameters declared with `decay` (two or more dims).
std::unique_ptr<Optimizer> make_adamw(const AdamWOptions&);

}  // namespace trireme
