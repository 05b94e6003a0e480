#include "model/mlp.h"

#include "spec/recompute.h"

namespace trireme {
namespace {

std::vector<Linear::Part> up_parts(const std::string& name, Activation act, int64_t ffn) {
  if (act == Activation::swiglu) return {{name + ".gate", ffn}, {name + ".up", ffn}};
  return {{name + ".up", ffn}};
}

}  // namespace

Mlp::Mlp(const std::string& name, Activation act, int64_t hidden, int64_t ffn, bool bias, float init_std,
         float out_init_std, double resid_pdrop, TensorPlace tp)
    : act_(act),
      ffn_(ffn / tp.size),
      up_(up_parts(name, act, ffn), hidden, bias, init_std, Divide::columns, tp),
      down_({{name + ".down", hidden}}, ffn, bias, out_init_std, Divide::rows, tp),
      resid_(name + ".resid", resid_pdrop, tp) {
  up_.input_is_its_own(), down_.input_is_its_own();
}

void Mlp::declare(std::vector<ParamDecl>& decls) const {
  up_.declare(decls);
  down_.declare(decls);
}
void Mlp::bind(ParamSet& set) {
  up_.bind(set);
  down_.bind(set);
}

Owned Mlp::activate(Ctx& ctx, const Tensor& u) const {
  Owned a = ctx.activation({u.rows(), ffn_});
  if (act_ == Activation::swiglu)
    ctx.k.run(SwigluArgs{.gate = u.narrow(1, 0, ffn_), .up = u.narrow(1, ffn_, ffn_), .y = *a}, ctx.compute);
  else
    ctx.k.run(GeluArgs{.x = u, .y = *a, .tanh_approx = act_ == Activation::gelu_tanh}, ctx.compute);
  return a;
}

Owned Mlp::activate_backward(Ctx& ctx, const Tensor& u, const Tensor& da) const {
  Owned du = ctx.activation(u.shape);
  if (act_ == Activation::swiglu)
    ctx.k.run(SwigluBackwardArgs{.gate = u.narrow(1, 0, ffn_),
                                 .up = u.narrow(1, ffn_, ffn_),
                                 .dy = da,
                                 .dgate = du->narrow(1, 0, ffn_),
                                 .dup = du->narrow(1, ffn_, ffn_)},
              ctx.compute);
  else
    ctx.k.run(GeluBackwardArgs{.x = u, .dy = da, .dx = *du, .tanh_approx = act_ == Activation::gelu_tanh},
              ctx.compute);
  return du;
}

// Both ways or neither: what a run's bytes are is told of a block, not of a direction.
bool Mlp::gelu_in_product(const Ctx& ctx, DType t) const {
  return act_ == Activation::gelu_tanh && up_.gelu_in_product(ctx, t) && down_.gelu_in_back_product(ctx, t);
}

Owned Mlp::forward(Ctx& ctx, const Tensor& x, const Tensor& residual, Saved& saved) const {
  Owned u, a;
  if (gelu_in_product(ctx, x.dtype)) {
    a = ctx.activation({up_.rows_out(x), ffn_});
    u = up_.forward(ctx, x, saved, {}, *a);
  } else {
    u = up_.forward(ctx, x, saved), a = activate(ctx, *u);
  }
  bool drop = resid_.on(ctx);
  Owned y = down_.forward(ctx, *a, saved, drop ? Tensor() : residual);
  if (drop) resid_.forward(ctx, *y, *y, residual);
  saved.keep(this, Kept::u, std::move(u));
  if (!down_.keeps_codes(ctx)) saved.keep(this, Kept::a, std::move(a));
  return y;
}

Owned Mlp::backward_input(Ctx& ctx, const Tensor& dy, Saved& saved) const {
  Owned dropped = resid_.backward(ctx, dy);
  const Tensor u = saved.get(this, Kept::u), out = dropped ? *dropped : dy;
  Owned du;
  if (gelu_in_product(ctx, dy.dtype)) {
    du = down_.backward_input(ctx, out, saved, u);
  } else {
    const Owned da = down_.backward_input(ctx, out, saved);
    du = activate_backward(ctx, u, *da);
  }
  if (dropped) saved.keep(this, Kept::dropped, std::move(dropped));
  saved.drop(this, Kept::u);
  Owned dx = up_.backward_input(ctx, *du, saved);
  saved.keep(this, Kept::du, std::move(du));
  return dx;
}

void Mlp::let_go(const Recompute& r, Saved& saved) const {
  if (r.has("u")) saved.let_go(this, Kept::u);
  if (r.has("a")) saved.let_go(this, Kept::a);
}
void Mlp::again(Ctx& ctx, const Tensor& x, Saved& saved) const {
  if (saved.gone(this, Kept::u)) saved.restore(this, Kept::u, up_.again(ctx, x));
  if (saved.gone(this, Kept::a)) saved.restore(this, Kept::a, activate(ctx, saved.get(this, Kept::u)));
}

void Mlp::backward_weight(Ctx& ctx, Saved& saved) const {
  down_.backward_weight(ctx, saved);
  up_.backward_weight(ctx, saved);
  saved.drop_all(this);
}

}  // namespace trireme
