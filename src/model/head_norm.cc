#include "model/head_norm.h"

namespace trireme {

HeadNorm::HeadNorm(std::string name, int64_t head_dim, float eps)
    : name_(std::move(name)), head_dim_(head_dim), eps_(eps) {}

void HeadNorm::declare(std::vector<ParamDecl>& decls) const {
  decls.push_back({.name = name_ + ".weight",
                   .global = {head_dim_},
                   .shard = {},
                   .init = {Init::Kind::ones},
                   .decay = false,
                   .tied_to = {},
                   .sum_grad = {Axis::tp}});
}

void HeadNorm::bind(ParamSet& set) {
  weight_ = set.find(name_ + ".weight");
}

void HeadNorm::forward(Ctx& ctx, const Tensor& x, const Tensor& y, Saved& saved) const {
  Owned rstd = ctx.activation({x.shape[0] * x.shape[1]}, DType::f32);
  ctx.k.run(RmsNormArgs{.x = x, .weight = weight_->weight, .y = y, .rstd = *rstd, .eps = eps_}, ctx.compute);
  saved.keep(this, Kept::rstd, std::move(rstd));
  saved.borrow(this, Kept::x, x);
}

// The statistics are written once more, as they are.
void HeadNorm::again(Ctx& ctx, const Tensor& x, const Tensor& y, Saved& saved) const {
  ctx.k.run(
      RmsNormArgs{
          .x = x, .weight = weight_->weight, .y = y, .rstd = saved.get(this, Kept::rstd), .eps = eps_},
      ctx.compute);
}

void HeadNorm::backward_input(Ctx& ctx, const Tensor& dy, const Tensor& dx, Saved& saved) const {
  Owned dweight = ctx.activation({head_dim_}, DType::f32);
  ctx.k.run(RmsNormBackwardArgs{.dy = dy,
                                .x = saved.get(this, Kept::x),
                                .weight = weight_->weight,
                                .rstd = saved.get(this, Kept::rstd),
                                .add = {},
                                .dx = dx,
                                .dweight = *dweight},
            ctx.compute);
  if (!weight_->decl.frozen) saved.keep(this, Kept::dweight, std::move(dweight));
  saved.drop(this, Kept::rstd);
  saved.drop(this, Kept::x);
}

void HeadNorm::backward_weight(Ctx& ctx, Saved& saved) const {
  if (weight_->decl.frozen) return;
  add_gradient(ctx, *weight_, saved.get(this, Kept::dweight));
  saved.drop_all(this);
}

}  // namespace trireme
