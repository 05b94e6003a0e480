// RMS normalisation of each head of q or k before positions are applied (Qwen3; Henry et al. 2020), or of
// what latent attention compresses, as of one head: one weight [head_dim], shared by all heads: where ranks
// of tp divide the heads, each has a summand of its gradient.
#pragma once
#include <string>

#include "model/layer.h"

namespace trireme {

class HeadNorm {
 public:
  HeadNorm(std::string name, int64_t head_dim, float eps);
  void declare(std::vector<ParamDecl>&) const;
  void bind(ParamSet&);

  // x, y [N, heads, D], rows free strides apart. x stays alive until backward_input.
  void forward(Ctx&, const Tensor& x, const Tensor& y, Saved&) const;
  void again(Ctx&, const Tensor& x, const Tensor& y, Saved&) const;  // y, made anew
  // dy, dx [N, heads, D]: the gradients of y and x; both may be one tensor. The weight's share of this
  // microbatch is computed here, as f32 [D], and added to the gradient by backward_weight.
  void backward_input(Ctx&, const Tensor& dy, const Tensor& dx, Saved&) const;
  void backward_weight(Ctx&, Saved&) const;

 private:
  std::string name_;
  int64_t head_dim_;
  float eps_;
  Param* weight_ = nullptr;
};

}  // namespace trireme
