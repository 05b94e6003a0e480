// AdamW (Loshchilov & Hutter 2019) over a rank's own part of a unit.
#pragma once
#include "optim/optimizer.h"

namespace trireme {

class AdamW final : public Optimizer {
 public:
  // others: leaves hidden matrices alone; their part of exp_avg is another's, and exp_avg_sq has none.
  AdamW(const AdamWOptions& o, bool others) : o_(o), others_(others) {}

  std::vector<StateDecl> state() const override {
    return {{"exp_avg", o_.moments}, {"exp_avg_sq", o_.moments}};
  }
  void step(Kernels&, const ParamSet&, const Unit&, const FlatState&, const UpdateInput&, Stream) override;
  void step_piece(Kernels&, const ParamSet&, const Unit&, const FlatState&, const StatePiece&,
                  const UpdateInput&, Stream) override;

 private:
  // One unit's update, or a piece's of it.
  struct Update;
  AdamWOptions o_;
  bool others_;
};

}  // namespace trireme
