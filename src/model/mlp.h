// The feed-forward layer: up -> gelu -> down (GPT-2), or silu(gate) * up -> down (llama).
#pragma once
#include "model/dropout.h"
#include "model/linear.h"

namespace trireme {

enum class Activation : uint8_t { gelu_tanh, gelu_erf, swiglu };

class Mlp {
 public:
  Mlp(const std::string& name, Activation, int64_t hidden, int64_t ffn, bool bias, float init_std,
      float out_init_std, double resid_pdrop, TensorPlace tp = {});
  void declare(std::vector<ParamDecl>&) const;
  void bind(ParamSet&);
  // x [N, hidden] -> residual + mlp(x).
  Owned forward(Ctx&, const Tensor& x, const Tensor& residual, Saved&) const;
  Owned backward_input(Ctx&, const Tensor& dy, Saved&) const;
  void backward_weight(Ctx&, Saved&) const;
  // "u" and "a" (Layer::let_go).
  void let_go(const Recompute&, Saved&) const;
  void again(Ctx&, const Tensor& x, Saved&) const;

  // x is an input of others too, or need not stay alive beyond forward (Linear::keeps_codes).
  void share_input() { up_.input_is_its_own(false); }
  bool keeps_input(const Ctx& ctx) const { return up_.keeps_codes(ctx); }

 private:
  Owned activate(Ctx&, const Tensor& u) const;
  Owned activate_backward(Ctx&, const Tensor& u, const Tensor& da) const;
  bool gelu_in_product(const Ctx&, DType) const;

  Activation act_;
  int64_t ffn_;       // of this rank
  Linear up_, down_;  // up_ holds gate and up side by side when gated
  Dropout resid_;
};

}  // namespace trireme
