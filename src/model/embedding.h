// Token (and learned position) embedding: the first layer of the first stage.
#pragma once
#include <string>

#include "model/dropout.h"
#include "model/tensor_parallel.h"

namespace trireme {

class Embedding : public Layer {
 public:
  // max_positions = 0: no learned positions.
  // Ranks of tp divide the vocabulary: each looks up the ids that it has, and the sum over ranks is whole.
  Embedding(int64_t vocab, int64_t hidden, int64_t max_positions, float init_std, double embd_pdrop,
            TensorPlace tp = {}, bool shared = false);
  std::string_view name() const override { return "embed"; }
  void declare(std::vector<ParamDecl>&) const override;
  void bind(ParamSet&) override;
  Owned forward(Ctx&, const Tensor& x, Saved&) override;  // x is ignored: tokens come from the batch
  Owned backward_input(Ctx&, const Tensor& dy, Saved&) override;
  void backward_weight(Ctx&, Saved&) override;

 private:
  int64_t first_row() const;  // of this rank's part of the table
  int64_t vocab_, hidden_, max_positions_;
  float init_std_;
  Dropout dropout_;
  TensorPlace tp_;
  bool shared_;  // with the head of another stage
  Param* tokens_ = nullptr;
  Param* positions_ = nullptr;
};

}  // namespace trireme
