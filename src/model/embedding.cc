#include "model/embedding.h"

namespace trireme {

Embedding::Embedding(int64_t vocab, int64_t hidden, int64_t max_positions, float init_std, double embd_pdrop)
    : vocab_(vocab),
      hidden_(hidden),
      max_positions_(max_positions),
      init_std_(init_std),
      dropout_("embed", embd_pdrop) {}

void Embedding::declare(std::vector<ParamDecl>& decls) const {
  ParamDecl d{.name = "embed.tokens.weight",
              .global = {vocab_, hidden_},
              .shard = {},
              .init = {Init::Kind::normal, init_std_},
              .decay = true,
              .tied_to = {},
              .sum_grad = {}};
  decls.push_back(d);
  if (max_positions_ > 0) {
    d.name = "embed.positions.weight";
    d.global = {max_positions_, hidden_};
    decls.push_back(d);
  }
}

void Embedding::bind(ParamSet& set) {
  tokens_ = set.find("embed.tokens.weight");
  positions_ = max_positions_ > 0 ? set.find("embed.positions.weight") : nullptr;
}

Owned Embedding::forward(Ctx& ctx, const Tensor&, Saved&) {
  ctx.layer = name();
  Owned y = ctx.activation({ctx.batch.rows(), hidden_});
  ctx.k.run(EmbeddingArgs{.ids = ctx.batch.tokens, .table = tokens_->weight, .y = *y}, ctx.compute);
  if (positions_)
    ctx.k.run(
        EmbeddingArgs{.ids = ctx.batch.positions, .table = positions_->weight, .y = *y, .accumulate = true},
        ctx.compute);
  if (dropout_.on(ctx)) dropout_.forward(ctx, *y, *y);
  return y;
}

Owned Embedding::backward_input(Ctx&, const Tensor& dy, Saved& saved) {
  saved.borrow(this, "dy", dy);
  return {};
}

void Embedding::scatter(Ctx& ctx, Param& p, const Tensor& ids, const Tensor& dy) const {
  ctx.k.run(EmbeddingBackwardArgs{.ids = ids, .dy = dy, .dtable = p.grad, .accumulate = p.grad_started},
            ctx.compute);
  p.grad_started = true;
}

void Embedding::backward_weight(Ctx& ctx, Saved& saved) {
  ctx.layer = name();
  Owned dropped = dropout_.backward(ctx, saved.get(this, "dy"));
  const Tensor dy = dropped ? *dropped : saved.get(this, "dy");
  scatter(ctx, *tokens_, ctx.batch.tokens, dy);
  if (positions_) scatter(ctx, *positions_, ctx.batch.positions, dy);
  saved.drop_all(this);
}

}  // namespace trireme
