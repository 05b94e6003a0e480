#include "model/norm.h"

namespace trireme {

Norm::Norm(std::string name, NormKind kind, int64_t features, float eps, TensorPlace tp)
    : name_(std::move(name)), kind_(kind), features_(features), eps_(eps), tp_(tp) {}

void Norm::declare(std::vector<ParamDecl>& decls) const {
  ParamDecl d{.name = name_ + ".weight",
              .global = {features_},
              .shard = {},
              .init = {Init::Kind::ones},
              .decay = false,
              .tied_to = {},
              .sum_grad = tp_.sum_of_rows()};
  decls.push_back(d);
  if (kind_ == NormKind::layer) {
    d.name = name_ + ".bias";
    d.init = {};
    decls.push_back(d);
  }
}

void Norm::bind(ParamSet& set) {
  weight_ = set.find(name_ + ".weight");
  bias_ = kind_ == NormKind::layer ? set.find(name_ + ".bias") : nullptr;
}

// mean, rstd f32 [N]; no mean of an rms norm.
void Norm::run(Ctx& ctx, const Tensor& x, const Tensor& y, const Tensor& mean, const Tensor& rstd) const {
  if (kind_ == NormKind::layer)
    ctx.k.run(LayerNormArgs{.x = x,
                            .weight = weight_->weight,
                            .bias = bias_->weight,
                            .y = y,
                            .mean = mean,
                            .rstd = rstd,
                            .eps = eps_},
              ctx.compute);
  else
    ctx.k.run(RmsNormArgs{.x = x, .weight = weight_->weight, .y = y, .rstd = rstd, .eps = eps_}, ctx.compute);
}

Owned Norm::forward(Ctx& ctx, const Tensor& x, Saved& saved) const {
  int64_t n = x.rows();
  Owned y = ctx.activation({n, features_}), rstd = ctx.activation({n}, DType::f32), mean;
  if (kind_ == NormKind::layer) mean = ctx.activation({n}, DType::f32);
  run(ctx, x, *y, *mean, *rstd);
  if (mean) saved.keep(this, Kept::mean, std::move(mean));
  saved.keep(this, Kept::rstd, std::move(rstd));
  saved.borrow(this, Kept::x, x);
  return y;
}

// The statistics are written once more, as they are.
Owned Norm::again(Ctx& ctx, const Tensor& x, Saved& saved) const {
  Owned y = ctx.activation({x.rows(), features_});
  run(ctx, x, *y, kind_ == NormKind::layer ? saved.get(this, Kept::mean) : Tensor(),
      saved.get(this, Kept::rstd));
  return y;
}

Owned Norm::backward_input(Ctx& ctx, const Tensor& dy, Saved& saved, const Tensor& add) const {
  Tensor x = saved.get(this, Kept::x), rstd = saved.get(this, Kept::rstd);
  Owned dx = ctx.activation({x.rows(), features_}), dweight = ctx.activation({features_}, DType::f32);
  if (kind_ == NormKind::layer) {
    Owned dbias = ctx.activation({features_}, DType::f32);
    ctx.k.run(LayerNormBackwardArgs{.dy = dy,
                                    .x = x,
                                    .weight = weight_->weight,
                                    .mean = saved.get(this, Kept::mean),
                                    .rstd = rstd,
                                    .add = add,
                                    .dx = *dx,
                                    .dweight = *dweight,
                                    .dbias = *dbias},
              ctx.compute);
    if (!weight_->decl.frozen) saved.keep(this, Kept::dbias, std::move(dbias));
  } else {
    ctx.k.run(RmsNormBackwardArgs{.dy = dy,
                                  .x = x,
                                  .weight = weight_->weight,
                                  .rstd = rstd,
                                  .add = add,
                                  .dx = *dx,
                                  .dweight = *dweight},
              ctx.compute);
  }
  if (!weight_->decl.frozen) saved.keep(this, Kept::dweight, std::move(dweight));
  saved.drop(this, Kept::mean);
  saved.drop(this, Kept::rstd);
  saved.drop(this, Kept::x);
  return dx;
}

void Norm::backward_weight(Ctx& ctx, Saved& saved) const {
  if (weight_->decl.frozen) return;
  add_gradient(ctx, *weight_, saved.get(this, Kept::dweight));
  if (bias_) add_gradient(ctx, *bias_, saved.get(this, Kept::dbias));
  saved.drop_all(this);
}

}  // namespace trireme
