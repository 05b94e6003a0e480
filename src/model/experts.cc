#include "model/experts.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {

Experts::Experts(std::string name, std::vector<std::string> parts, int64_t experts, int64_t out, int64_t in,
                 float init_std, AxisPlace ep)
    : name_(std::move(name)),
      parts_(std::move(parts)),
      first_(experts / ep.size * ep.rank),
      experts_(experts / ep.size),
      out_(out),
      in_(in),
      init_std_(init_std) {}

void Experts::declare(std::vector<ParamDecl>& decls) const {
  decls.reserve(decls.size() + size_t(experts_) * parts_.size());
  for (int64_t e = first_; e < first_ + experts_; e++) {
    const std::string expert = name_ + '.' + std::to_string(e) + '.';
    for (const std::string& part : parts_)
      decls.push_back({.name = expert + part + ".weight",
                       .global = {out_, in_},
                       .shard = {},
                       .init = {Init::Kind::normal, init_std_},
                       .decay = true,
                       .hidden_matrix = true,
                       .tied_to = {},
                       .sum_grad = {},
                       .expert = true});
  }
}

// Declared one behind the other, so the set has them in a row: one search for all.
void Experts::bind(ParamSet& set) {
  std::vector<ParamDecl> decls;
  declare(decls);
  weights_.clear();
  Param* p = set.find(decls[0].name);
  const int64_t first = p->offset;
  for (const ParamDecl& d : decls) {
    require(p->decl.name == d.name && p->offset == first + int64_t(weights_.size()) * out_ * in_,
            "the experts' matrices are not neighbours in memory");
    weights_.push_back(p++);
  }
}

Tensor Experts::all(Tensor Param::*field) const {
  const Tensor& first = weights_[0]->*field;
  require(bool(first), "experts run while their weights or gradients are nowhere");
  return Tensor(first.data, {experts_, out(), in_}, first.dtype);
}

Owned Experts::forward(Ctx& ctx, const Tensor& x, const Tensor& offsets) const {
  Owned y = ctx.activation({x.rows(), out()});
  ctx.k.run(GroupedMatmulArgs{.x = x, .w = all(&Param::weight), .offsets = offsets, .y = *y, .trans_w = true},
            ctx.compute);
  return y;
}
Owned Experts::backward_input(Ctx& ctx, const Tensor& dy, const Tensor& offsets) const {
  Owned dx = ctx.activation({dy.rows(), in_});
  ctx.k.run(GroupedMatmulArgs{.x = dy, .w = all(&Param::weight), .offsets = offsets, .y = *dx}, ctx.compute);
  return dx;
}
void Experts::backward_weight(Ctx& ctx, const Tensor& dy, const Tensor& x, const Tensor& offsets) const {
  if (weights_[0]->decl.frozen) return;
  bool started = false;  // all or none
  for (Param* p : weights_) started = p->start_grad();
  ctx.k.run(
      GroupedMatmulWeightArgs{
          .dy = dy, .x = x, .offsets = offsets, .dw = all(&Param::grad), .accumulate = started},
      ctx.compute);
}

int64_t Experts::scratch(Ctx& ctx, const Tensor& x, const Tensor& y, const Tensor& offsets) const {
  const Tensor w = all(&Param::weight);
  return std::max(
      ctx.k.scratch_of(GroupedMatmulArgs{.x = x, .w = w, .offsets = offsets, .y = y, .trans_w = true}),
      ctx.k.scratch_of(GroupedMatmulArgs{.x = y, .w = w, .offsets = offsets, .y = x}));
}
int64_t Experts::weight_scratch(Ctx& ctx, const Tensor& dy, const Tensor& x, const Tensor& offsets) const {
  if (weights_[0]->decl.frozen) return 0;
  return ctx.k.scratch_of(
      GroupedMatmulWeightArgs{.dy = dy, .x = x, .offsets = offsets, .dw = all(&Param::grad)});
}

// ---- the feed-forward ----

ExpertFfn::ExpertFfn(const std::string& name, const Sizes& s, AxisPlace ep)
    : ffn_(s.ffn),
      up_(name, {"gate", "up"}, s.experts, s.ffn, s.hidden, s.init_std, ep),
      down_(name, {"down"}, s.experts, s.hidden, s.ffn, s.out_init_std, ep) {}

void ExpertFfn::declare(std::vector<ParamDecl>& decls) const {
  up_.declare(decls);
  down_.declare(decls);
}
void ExpertFfn::bind(ParamSet& set) {
  up_.bind(set);
  down_.bind(set);
}

ExpertFfn::Inner ExpertFfn::inner(Ctx& ctx, const Tensor& x, const Tensor& offsets) const {
  Inner in{.u = up(ctx, x, offsets), .a = {}};
  in.a = activate(ctx, *in.u);
  return in;
}
Owned ExpertFfn::up(Ctx& ctx, const Tensor& x, const Tensor& offsets) const {
  return up_.forward(ctx, x, offsets);
}
Owned ExpertFfn::activate(Ctx& ctx, const Tensor& u) const {
  Owned a = ctx.activation({u.rows(), ffn_});
  ctx.k.run(SwigluArgs{.gate = u.narrow(1, 0, ffn_), .up = u.narrow(1, ffn_, ffn_), .y = *a}, ctx.compute);
  return a;
}
void ExpertFfn::again(Ctx& ctx, const void* layer, const Tensor& x, const Tensor& offsets,
                      Saved& saved) const {
  if (saved.gone(layer, Kept::u)) saved.restore(layer, Kept::u, up(ctx, x, offsets));
  if (saved.gone(layer, Kept::a)) saved.restore(layer, Kept::a, activate(ctx, saved.get(layer, Kept::u)));
}

Owned ExpertFfn::outer(Ctx& ctx, const Tensor& a, const Tensor& offsets) const {
  return down_.forward(ctx, a, offsets);
}

Owned ExpertFfn::backward_input(Ctx& ctx, const Tensor& dy, const Tensor& u, const Tensor& offsets) const {
  const Tensor gate = u.narrow(1, 0, ffn_), up = u.narrow(1, ffn_, ffn_);
  Owned da = down_.backward_input(ctx, dy, offsets);
  ctx.k.run(SwigluBackwardArgs{.gate = gate, .up = up, .dy = *da, .dgate = gate, .dup = up}, ctx.compute);
  da.reset();
  return up_.backward_input(ctx, u, offsets);
}

void ExpertFfn::backward_weight(Ctx& ctx, const Tensor& dy, const Tensor& a, const Tensor& du,
                                const Tensor& x, const Tensor& offsets) const {
  down_.backward_weight(ctx, dy, a, offsets);
  up_.backward_weight(ctx, du, x, offsets);
}

int64_t ExpertFfn::scratch(Ctx& ctx, const Tensor& x, const Tensor& u, const Tensor& a, const Tensor& offsets,
                           bool weight) const {
  if (weight)
    return std::max(down_.weight_scratch(ctx, x, a, offsets), up_.weight_scratch(ctx, u, x, offsets));
  return std::max(up_.scratch(ctx, x, u, offsets), down_.scratch(ctx, a, x, offsets));
}

}  // namespace trireme
