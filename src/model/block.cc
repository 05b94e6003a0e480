#include "model/block.h"

#include "spec/recompute.h"

namespace trireme {

Block::Block(std::string name, Norm norm1, AnyAttention attn, Norm norm2, FeedForward mlp)
    : name_(std::move(name)),
      attn_name_(name_ + ".attn"),
      mlp_name_(name_ + (std::holds_alternative<Moe>(mlp) ? ".moe" : ".mlp")),
      norm1_(std::move(norm1)),
      attn_(std::move(attn)),
      norm2_(std::move(norm2)),
      mlp_(std::move(mlp)) {}

void Block::declare(std::vector<ParamDecl>& decls) const {
  norm1_.declare(decls);
  std::visit([&](auto& a) { a.declare(decls); }, attn_);
  norm2_.declare(decls);
  std::visit([&](auto& m) { m.declare(decls); }, mlp_);
}
void Block::bind(ParamSet& set) {
  norm1_.bind(set);
  std::visit([&](auto& a) { a.bind(set); }, attn_);
  norm2_.bind(set);
  std::visit([&](auto& m) { m.bind(set); }, mlp_);
}

// Some keep their inputs in 8 bits.
Owned Block::forward(Ctx& ctx, const Tensor& x, Saved& saved) {
  const auto keeps_input = [&](const auto& layer) { return layer.keeps_input(ctx); };
  ctx.layer = attn_name_;
  Owned n1 = norm1_.forward(ctx, x, saved);
  Owned mid = std::visit([&](auto& a) { return a.forward(ctx, *n1, x, saved); }, attn_);
  if (std::visit(keeps_input, attn_)) n1.reset();
  ctx.layer = mlp_name_;
  Owned n2 = norm2_.forward(ctx, *mid, saved);
  Owned y = std::visit([&](auto& m) { return m.forward(ctx, *n2, *mid, saved); }, mlp_);
  if (std::visit(keeps_input, mlp_)) n2.reset();
  if (n1) saved.keep(this, Kept::n1, std::move(n1));
  saved.keep(this, Kept::mid, std::move(mid));
  if (n2) saved.keep(this, Kept::n2, std::move(n2));
  return y;
}

Owned Block::backward_input(Ctx& ctx, const Tensor& dy, Saved& saved) {
  ctx.layer = mlp_name_;
  Owned dn2 = std::visit([&](auto& m) { return m.backward_input(ctx, dy, saved); }, mlp_);
  Owned dmid = norm2_.backward_input(ctx, *dn2, saved, dy);
  dn2.reset();
  saved.drop(this, Kept::mid);
  ctx.layer = attn_name_;
  Owned dn1 = std::visit([&](auto& a) { return a.backward_input(ctx, *dmid, saved); }, attn_);
  Owned dx = norm1_.backward_input(ctx, *dn1, saved, *dmid);
  saved.keep(this, Kept::dmid, std::move(dmid));
  return dx;
}

void Block::backward_weight(Ctx& ctx, Saved& saved) {
  ctx.layer = mlp_name_;
  std::visit([&](auto& m) { m.backward_weight(ctx, saved); }, mlp_);
  norm2_.backward_weight(ctx, saved);
  ctx.layer = attn_name_;
  std::visit([&](auto& a) { a.backward_weight(ctx, saved); }, attn_);
  norm1_.backward_weight(ctx, saved);
  saved.drop_all(this);
}

void Block::let_go(const Recompute& r, Saved& saved) const {
  if (r.has("n1")) saved.let_go(this, Kept::n1);
  if (r.has("n2")) saved.let_go(this, Kept::n2);
  if (r.has("mid")) saved.let_go(this, Kept::mid);
  std::visit([&](const auto& a) { a.let_go(r, saved); }, attn_);
  std::visit([&](const auto& m) { m.let_go(r, saved); }, mlp_);
}

void Block::again(Ctx& ctx, const Tensor& x, Saved& saved) {
  ctx.layer = attn_name_;
  if (saved.gone(this, Kept::n1)) saved.restore(this, Kept::n1, norm1_.again(ctx, x, saved));
  std::visit([&](auto& a) { a.again(ctx, saved.get(this, Kept::n1), saved); }, attn_);
  if (saved.gone(this, Kept::mid))
    saved.restore(this, Kept::mid, std::visit([&](auto& a) { return a.output_again(ctx, x, saved); }, attn_));
  ctx.layer = mlp_name_;
  if (saved.gone(this, Kept::n2))
    saved.restore(this, Kept::n2, norm2_.again(ctx, saved.get(this, Kept::mid), saved));
  std::visit([&](auto& m) { m.again(ctx, saved.get(this, Kept::n2), saved); }, mlp_);
}

}  // namespace trireme
