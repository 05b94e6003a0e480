// Token (and learned position) embedding: the first layer of the first stage.
#pragma once
#include <string>

#include "model/dropout.h"
#include "model/layer.h"

namespace trireme {

class Embedding : public Layer {
 public:
  // max_positions = 0: no learned positions.
  Embedding(int64_t vocab, int64_t hidden, int64_t max_positions, float init_std, double embd_pdrop);
  std::string_view name() const override { return "embed"; }
  void declare(std::vector<ParamDecl>&) const override;
  void bind(ParamSet&) override;
  Owned forward(Ctx&, const Tensor& x, Saved&) override;  // x is ignored: tokens come from the batch
  Owned backward_input(Ctx&, const Tensor& dy, Saved&) override;
  void backward_weight(Ctx&, Saved&) override;

 private:
  void scatter(Ctx&, Param&, const Tensor& ids, const Tensor& dy) const;
  int64_t vocab_, hidden_, max_positions_;
  float init_std_;
  Dropout dropout_;
  Param* tokens_ = nullptr;
  Param* positions_ = nullptr;
};

}  // namespace trireme
