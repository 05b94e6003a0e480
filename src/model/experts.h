// The experts of a layer: their matrices, and their feed-forward over rows that lie expert behind expert.
#pragma once
#include "model/layer.h"

namespace trireme {

// A matrix of each expert, or several one above the other, computed as one [E, out, in]: of the experts that
// this rank of ep has, E / ep of them in rank order.
class Experts {
 public:
  // parts: "gate", "up"; expert e's parameters are name.e.part.weight [out, in] each.
  Experts(std::string name, std::vector<std::string> parts, int64_t experts, int64_t out, int64_t in,
          float init_std, AxisPlace ep);
  void declare(std::vector<ParamDecl>&) const;
  void bind(ParamSet&);
  int64_t out() const { return int64_t(parts_.size()) * out_; }

  // x [R, in] -> y [R, out]; rows of expert e are [offsets[e], offsets[e + 1]).
  Owned forward(Ctx&, const Tensor& x, const Tensor& offsets) const;
  Owned backward_input(Ctx&, const Tensor& dy, const Tensor& offsets) const;
  void backward_weight(Ctx&, const Tensor& dy, const Tensor& x, const Tensor& offsets) const;

  // Scratch that the products of R rows take, bytes.
  int64_t scratch(Ctx&, const Tensor& x, const Tensor& y, const Tensor& offsets) const;
  int64_t weight_scratch(Ctx&, const Tensor& dy, const Tensor& x, const Tensor& offsets) const;

 private:
  Tensor all(Tensor Param::*) const;  // [E, out, in]
  std::string name_;
  std::vector<std::string> parts_;
  int64_t first_, experts_, out_, in_;  // experts of this rank: the first, how many
  float init_std_;
  std::vector<Param*> weights_;
};

// swiglu(x gate^T, x up^T) down^T of each row by its expert's matrices. Rows of no expert become 0.
class ExpertFfn {
 public:
  struct Sizes {
    int64_t experts, hidden, ffn;
    float init_std, out_init_std;
  };
  ExpertFfn(const std::string& name, const Sizes&, AxisPlace ep);
  void declare(std::vector<ParamDecl>&) const;
  void bind(ParamSet&);

  // What the backward passes want of x [R, hidden]: gate and up [R, 2 ffn], and swiglu's output [R, ffn].
  struct Inner {
    Owned u, a;
  };
  Inner inner(Ctx&, const Tensor& x, const Tensor& offsets) const;
  Owned up(Ctx&, const Tensor& x, const Tensor& offsets) const;
  Owned activate(Ctx&, const Tensor& u) const;
  // Recomputes from x those of "u" and "a" that `layer` released, and restores them.
  void again(Ctx&, const void* layer, const Tensor& x, const Tensor& offsets, Saved&) const;
  Owned outer(Ctx&, const Tensor& a, const Tensor& offsets) const;  // [R, hidden]
  // dx from dy; u becomes its own gradient.
  Owned backward_input(Ctx&, const Tensor& dy, const Tensor& u, const Tensor& offsets) const;
  void backward_weight(Ctx&, const Tensor& dy, const Tensor& a, const Tensor& du, const Tensor& x,
                       const Tensor& offsets) const;
  // The most scratch that a product of as many rows takes; of backward_weight if `weight`.
  int64_t scratch(Ctx&, const Tensor& x, const Tensor& u, const Tensor& a, const Tensor& offsets,
                  bool weight) const;

 private:
  int64_t ffn_;
  Experts up_, down_;  // up_ holds gate and up side by side
};

}  // namespace trireme
