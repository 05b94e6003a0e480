#include "model/embedding.h"

namespace trireme {

Embedding::Embedding(int64_t vocab, int64_t hidden, int64_t max_positions, float init_std, double embd_pdrop,
                     TensorPlace tp, bool shared)
    : vocab_(vocab),
      hidden_(hidden),
      max_positions_(max_positions),
      init_std_(init_std),
      dropout_("embed", embd_pdrop, tp),
      tp_(tp),
      shared_(shared) {}

void Embedding::declare(std::vector<ParamDecl>& decls) const {
  ParamDecl d{.name = "embed.tokens.weight",
              .global = {vocab_, hidden_},
              .shard = vocabulary_shard(),
              .init = {Init::Kind::normal, init_std_},
              .decay = true,
              .tied_to = {},
              .sum_grad = {},
              .shared = shared_};
  decls.push_back(d);
  d.shared = false;
  if (max_positions_ > 0) {
    d.shard = {};
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
  ctx.k.run(
      EmbeddingArgs{
          .ids = ctx.batch.tokens, .table = tokens_->weight, .y = *y, .first = first_row(), .vocab = vocab_},
      ctx.compute);
  if (tp_.sequence)
    y = scattered_sum(ctx, tp_, *y);
  else
    sum_over_tp(ctx, tp_, *y);
  if (positions_) {
    const Tensor all = ctx.batch.positions.view({ctx.batch.rows()});
    ctx.k.run(EmbeddingArgs{.ids = all.narrow(0, tp_.part() * y->rows(), y->rows()),
                            .table = positions_->weight,
                            .y = *y,
                            .accumulate = true},
              ctx.compute);
  }
  if (dropout_.on(ctx)) dropout_.forward(ctx, *y, *y);
  return y;
}

Owned Embedding::backward_input(Ctx&, const Tensor& dy, Saved& saved) {
  saved.borrow(this, Kept::dy, dy);
  return {};
}

int64_t Embedding::first_row() const {
  return tp_.rank * tokens_->stored[0];
}

void Embedding::backward_weight(Ctx& ctx, Saved& saved) {
  if (tokens_->decl.frozen) return saved.drop_all(this);
  ctx.layer = name();
  Owned dropped = dropout_.backward(ctx, saved.get(this, Kept::dy));
  Tensor dy = dropped ? *dropped : saved.get(this, Kept::dy);
  Owned gathered = tp_.sequence ? gathered_rows(ctx, tp_, dy) : Owned();
  if (gathered) dy = *gathered;
  EmbeddingBackwardArgs args{.ids = ctx.batch.tokens,
                             .dy = dy,
                             .dtable = tokens_->grad,
                             .accumulate = tokens_->start_grad(),
                             .first = first_row(),
                             .vocab = vocab_};
  ctx.k.run(args, ctx.compute);
  if (positions_) {
    ctx.k.run(EmbeddingBackwardArgs{.ids = ctx.batch.positions,
                                    .dy = dy,
                                    .dtable = positions_->grad,
                                    .accumulate = positions_->start_grad()},
              ctx.compute);
  }
  saved.drop_all(this);
}

}  // namespace trireme
