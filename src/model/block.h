// A transformer block: x + attention(norm(x)), then + mlp(norm(.)).
#pragma once
#include <variant>

#include "model/latent_attention.h"
#include "model/mlp.h"
#include "model/moe.h"
#include "model/norm.h"

namespace trireme {

using AnyAttention = std::variant<Attention, LatentAttention>;
using FeedForward = std::variant<Mlp, Moe>;

class Block : public Layer {
 public:
  Block(std::string name, Norm norm1, AnyAttention, Norm norm2, FeedForward);
  std::string_view name() const override { return name_; }
  void declare(std::vector<ParamDecl>&) const override;
  void bind(ParamSet&) override;
  Owned forward(Ctx&, const Tensor& x, Saved&) override;
  Owned backward_input(Ctx&, const Tensor& dy, Saved&) override;
  void backward_weight(Ctx&, Saved&) override;
  void let_go(const Recompute&, Saved&) const override;
  void again(Ctx&, const Tensor& x, Saved&) override;

 private:
  std::string name_, attn_name_, mlp_name_;
  Norm norm1_;
  AnyAttention attn_;
  Norm norm2_;
  FeedForward mlp_;
};

}  // namespace trireme
