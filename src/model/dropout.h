// Dropout at one place of the model: off outside training and at rate 0, where nothing is launched or kept.
#pragma once
#include <string>

#include "model/tensor_parallel.h"

namespace trireme {

class Dropout {
 public:
  // name: of the place ("blocks.3.mlp.resid"), which draws its own numbers.
  // tp.sequence, and ranks of cp: forward and backward see this rank's rows, numbered as those of all.
  Dropout(std::string name, double rate, TensorPlace tp = {})
      : name_(std::move(name)), rate_(rate), tp_(tp) {}

  bool on(const Ctx& ctx) const { return rate_ > 0 && ctx.training; }
  // For a tensor whose whole sequences hold per_sequence elements each: element e of sequence s of the global
  // batch has index s * per_sequence + e. Rate 0 where dropout is off.
  DropoutMask mask(const Ctx&, int64_t per_sequence) const;
  // Of attention's probabilities: heads [first, first + the operand's) of `heads`.
  DropoutMask probabilities(const Ctx&, int64_t heads, int64_t first) const;

  // y = dropped x (+ residual); y may be either. Only where on().
  void forward(Ctx&, const Tensor& x, const Tensor& y, const Tensor& residual = {}) const;
  // The gradient of x, drawn again; empty where off: it is dy.
  Owned backward(Ctx&, const Tensor& dy) const;

 private:
  std::string name_;
  double rate_;
  TensorPlace tp_;
};

}  // namespace trireme
