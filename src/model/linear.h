// y = x W^T + b. One matrix, or several declared side by side (q, k, v; gate, up) that are computed as one.
#pragma once
#include <string>

#include "model/layer.h"

namespace trireme {

class Linear {
 public:
  struct Part {
    std::string name;  // "blocks.0.attn.q": parameters are name.weight [out, in] and name.bias [out]
    int64_t out;
  };
  Linear(std::vector<Part> parts, int64_t in, bool bias, float init_std);

  void declare(std::vector<ParamDecl>&) const;
  void bind(ParamSet&);
  int64_t out() const { return out_; }

  // x [N, in] -> y [N, out] (+ residual [N, out]). x stays alive until backward_weight.
  Owned forward(Ctx&, const Tensor& x, Saved&, const Tensor& residual = {}) const;
  // dy [N, out] -> dx [N, in]; dy stays alive until backward_weight.
  Owned backward_input(Ctx&, const Tensor& dy, Saved&) const;
  // dW += dy^T x; db += column sums of dy.
  void backward_weight(Ctx&, Saved&) const;

 private:
  std::vector<Part> parts_;
  int64_t in_, out_ = 0;
  bool bias_;
  float init_std_;
  // All parts as one. Made at each use: weights and gradients may lie elsewhere in every pass (ZeRO 2 and 3).
  Tensor weight(Tensor Param::*) const;  // [out, in]
  Tensor bias(Tensor Param::*) const;    // [out], null without biases

  std::vector<Param*> weights_, biases_;
};

}  // namespace trireme
