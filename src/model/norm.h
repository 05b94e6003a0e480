// Layer and root-mean-square normalisation as layers see them.
#pragma once
#include <string>

#include "model/tensor_parallel.h"

namespace trireme {

enum class NormKind : uint8_t { layer, rms };

class Norm {
 public:
  // tp.sequence: it sees this rank's rows, and its gradients are summed over the ranks.
  Norm(std::string name, NormKind kind, int64_t features, float eps, TensorPlace tp = {});
  void declare(std::vector<ParamDecl>&) const;
  void bind(ParamSet&);

  // x [N, C] -> y [N, C]; x stays alive until backward_input.
  Owned forward(Ctx&, const Tensor& x, Saved&) const;
  Owned again(Ctx&, const Tensor& x, Saved&) const;  // y, made anew
  // dx = gradient + add (the residual branch's, optional). The weights' share of this microbatch is computed
  // here, as f32 [C], and added to the gradients by backward_weight: x is free after this pass.
  Owned backward_input(Ctx&, const Tensor& dy, Saved&, const Tensor& add = {}) const;
  void backward_weight(Ctx&, Saved&) const;

 private:
  void run(Ctx&, const Tensor& x, const Tensor& y, const Tensor& mean, const Tensor& rstd) const;

  std::string name_;
  NormKind kind_;
  int64_t features_;
  float eps_;
  TensorPlace tp_;
  Param* weight_ = nullptr;
  Param* bias_ = nullptr;
};

}  // namespace trireme
