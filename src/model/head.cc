#include "model/head.h"

#include <algorithm>

namespace trireme {

Head::Head(Norm norm, int64_t vocab, int64_t hidden, bool tied, float init_std)
    : norm_(std::move(norm)), vocab_(vocab), hidden_(hidden), tied_(tied), init_std_(init_std) {}

void Head::declare(std::vector<ParamDecl>& decls) const {
  norm_.declare(decls);
  decls.push_back({.name = "head.weight",
                   .global = {vocab_, hidden_},
                   .shard = {},
                   .init = {Init::Kind::normal, init_std_},
                   .decay = true,
                   .tied_to = tied_ ? "embed.tokens.weight" : "",
                   .sum_grad = {}});
}

void Head::bind(ParamSet& set) {
  norm_.bind(set);
  weight_ = set.find(tied_ ? "embed.tokens.weight" : "head.weight");
}

void Head::cross_entropy(Ctx& ctx, const Tensor& logits, int64_t first_row) const {
  int64_t n = logits.rows();
  ctx.k.run(CrossEntropyArgs{.logits = logits,
                             .targets = ctx.batch.targets.view({ctx.batch.rows()}).narrow(0, first_row, n),
                             .loss = ctx.token_loss.narrow(0, first_row, n),
                             .vocab = vocab_,
                             .grad_scale = ctx.grad_scale,
                             .backward = ctx.backward},
            ctx.compute);
}

Owned Head::forward(Ctx& ctx, const Tensor& x, Saved& saved) {
  ctx.layer = name();
  int64_t rows = ctx.logits ? ctx.logits.rows() : x.rows();
  Owned n = norm_.forward(ctx, x.narrow(0, x.rows() - rows, rows), saved);
  if (ctx.logits)
    ctx.k.run(MatmulArgs{.a = *n, .b = weight_->weight, .c = ctx.logits, .trans_b = true}, ctx.compute);
  else if (ctx.dtype == DType::f32)
    by_blocks(ctx, std::move(n), saved);
  else
    whole(ctx, std::move(n), saved);
  return {};
}

// [rows, vocab], rows on cache lines where they are long: with an odd vocabulary (GPT-2's 50257) every row of
// a tile of logits would straddle lines, which costs the product a quarter of its speed.
Owned Head::logits_block(Ctx& ctx, Bucket bucket, int64_t rows) const {
  constexpr int64_t kLong = 256, kLine = 64;
  int64_t width = vocab_ < kLong ? vocab_ : (vocab_ + kLine - 1) / kLine * kLine;
  return Owned(ctx.arena, bucket, {rows, width}, ctx.dtype);
}

void Head::whole(Ctx& ctx, Owned n, Saved& saved) const {
  Owned padded = logits_block(ctx, Bucket::activations, n->rows());
  Tensor logits = padded->narrow(1, 0, vocab_);
  ctx.k.run(MatmulArgs{.a = *n, .b = weight_->weight, .c = logits, .trans_b = true}, ctx.compute);
  cross_entropy(ctx, logits, 0);
  if (!ctx.backward) return;
  saved.keep(this, "n", std::move(n));
  saved.keep(this, "dlogits", std::move(padded));
}

void Head::by_blocks(Ctx& ctx, Owned n, Saved& saved) const {
  Owned dn, dweight;
  if (ctx.backward) {
    dn = ctx.activation({n->rows(), hidden_});
    dweight = ctx.activation({vocab_, hidden_}, DType::f32);
  }
  Owned block = logits_block(ctx, Bucket::scratch, std::min(kRows, n->rows()));
  for (int64_t r = 0; r < n->rows(); r += kRows) {
    int64_t rows = std::min(kRows, n->rows() - r);
    Tensor logits = block->narrow(0, 0, rows).narrow(1, 0, vocab_), part = n->narrow(0, r, rows);
    ctx.k.run(MatmulArgs{.a = part, .b = weight_->weight, .c = logits, .trans_b = true}, ctx.compute);
    cross_entropy(ctx, logits, r);
    if (!ctx.backward) continue;
    ctx.k.run(MatmulArgs{.a = logits, .b = weight_->weight, .c = dn->narrow(0, r, rows)}, ctx.compute);
    ctx.k.run(MatmulArgs{.a = logits, .b = part, .c = *dweight, .trans_a = true, .accumulate = r > 0},
              ctx.compute);
  }
  if (!ctx.backward) return;
  saved.keep(this, "dn", std::move(dn));
  saved.keep(this, "dweight", std::move(dweight));
}

Owned Head::backward_input(Ctx& ctx, const Tensor&, Saved& saved) {
  ctx.layer = name();
  if (saved.has(this, "dn")) {
    Owned dx = norm_.backward_input(ctx, saved.get(this, "dn"), saved);
    saved.drop(this, "dn");
    return dx;
  }
  Owned dn = ctx.activation({ctx.batch.rows(), hidden_});
  ctx.k.run(MatmulArgs{.a = saved.get(this, "dlogits").narrow(1, 0, vocab_), .b = weight_->weight, .c = *dn},
            ctx.compute);
  return norm_.backward_input(ctx, *dn, saved);
}

void Head::backward_weight(Ctx& ctx, Saved& saved) {
  ctx.layer = name();
  norm_.backward_weight(ctx, saved);
  if (saved.has(this, "dweight")) {
    add_gradient(ctx, *weight_, saved.get(this, "dweight"));
  } else {
    ctx.k.run(MatmulArgs{.a = saved.get(this, "dlogits").narrow(1, 0, vocab_),
                         .b = saved.get(this, "n"),
                         .c = weight_->grad,
                         .trans_a = true,
                         .accumulate = weight_->grad_started},
              ctx.compute);
    weight_->grad_started = true;
  }
  saved.drop_all(this);
}

}  // namespace trireme
