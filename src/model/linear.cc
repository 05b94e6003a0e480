#include "model/linear.h"

namespace trireme {
namespace {

// One view over the storage of neighbouring parameters.
Tensor joined(const std::vector<Param*>& ps, Tensor Param::*field, const Shape& shape) {
  const Tensor& first = ps[0]->*field;
  require(bool(first), "a linear layer runs while its weights or gradients are nowhere");
  int64_t offset = ps[0]->offset;
  for (const Param* p : ps) {
    require(p->offset == offset, "the parts of a linear layer are not neighbours in memory");
    offset += p->numel();
  }
  return Tensor(first.data, shape, first.dtype);
}

// Are the parts' gradients started? All or none; marks them started.
bool start(const std::vector<Param*>& ps) {
  bool was = ps[0]->grad_started;
  for (Param* p : ps) p->grad_started = true;
  return was;
}

}  // namespace

Linear::Linear(std::vector<Part> parts, int64_t in, bool bias, float init_std)
    : parts_(std::move(parts)), in_(in), bias_(bias), init_std_(init_std) {
  for (const Part& p : parts_) out_ += p.out;
}

void Linear::declare(std::vector<ParamDecl>& decls) const {
  for (const Part& p : parts_)
    decls.push_back({.name = p.name + ".weight",
                     .global = {p.out, in_},
                     .shard = {},
                     .init = {Init::Kind::normal, init_std_},
                     .decay = true,
                     .hidden_matrix = true,
                     .tied_to = {},
                     .sum_grad = {}});
  if (!bias_) return;
  for (const Part& p : parts_)
    decls.push_back({.name = p.name + ".bias",
                     .global = {p.out},
                     .shard = {},
                     .init = {},
                     .decay = false,
                     .tied_to = {},
                     .sum_grad = {}});
}

void Linear::bind(ParamSet& set) {
  weights_.clear(), biases_.clear();
  for (const Part& p : parts_) weights_.push_back(set.find(p.name + ".weight"));
  if (!bias_) return;
  for (const Part& p : parts_) biases_.push_back(set.find(p.name + ".bias"));
}

Tensor Linear::weight(Tensor Param::*field) const {
  return joined(weights_, field, {out_, in_});
}
Tensor Linear::bias(Tensor Param::*field) const {
  return bias_ ? joined(biases_, field, {out_}) : Tensor();
}

Owned Linear::forward(Ctx& ctx, const Tensor& x, Saved& saved, const Tensor& residual) const {
  Owned y = ctx.activation({x.rows(), out_});
  ctx.k.run(MatmulArgs{.a = x,
                       .b = weight(&Param::weight),
                       .c = *y,
                       .trans_b = true,
                       .bias = bias(&Param::weight),
                       .residual = residual},
            ctx.compute);
  saved.borrow(this, "x", x);
  return y;
}

Owned Linear::backward_input(Ctx& ctx, const Tensor& dy, Saved& saved) const {
  Owned dx = ctx.activation({dy.rows(), in_});
  ctx.k.run(MatmulArgs{.a = dy, .b = weight(&Param::weight), .c = *dx}, ctx.compute);
  saved.borrow(this, "dy", dy);
  return dx;
}

void Linear::backward_weight(Ctx& ctx, Saved& saved) const {
  Tensor x = saved.get(this, "x"), dy = saved.get(this, "dy");
  ctx.k.run(
      MatmulArgs{.a = dy, .b = x, .c = weight(&Param::grad), .trans_a = true, .accumulate = start(weights_)},
      ctx.compute);
  if (bias_)
    ctx.k.run(ColumnSumArgs{.dy = dy, .db = bias(&Param::grad), .accumulate = start(biases_)}, ctx.compute);
  saved.drop_all(this);
}

}  // namespace trireme
