#include "model/head.h"

#include <algorithm>

namespace trireme {

Head::Head(Norm norm, int64_t vocab, int64_t hidden, Weight where, float init_std, TensorPlace tp)
    : norm_(std::move(norm)), vocab_(vocab), hidden_(hidden), where_(where), init_std_(init_std), tp_(tp) {}

void Head::declare(std::vector<ParamDecl>& decls) const {
  norm_.declare(decls);
  decls.push_back({.name = where_ == Weight::copy ? "embed.tokens.weight" : "head.weight",
                   .global = {vocab_, hidden_},
                   .shard = vocabulary_shard(),
                   .init = {Init::Kind::normal, init_std_},
                   .decay = true,
                   .tied_to = where_ == Weight::tied ? "embed.tokens.weight" : "",
                   .sum_grad = {},
                   .shared = where_ == Weight::copy,
                   .copy = where_ == Weight::copy});
}

void Head::bind(ParamSet& set) {
  norm_.bind(set);
  weight_ = set.find(where_ == Weight::own ? "head.weight" : "embed.tokens.weight");
}

void Head::cross_entropy(Ctx& ctx, const Tensor& logits, int64_t first_row) const {
  if (tp_.size > 1) return split_cross_entropy(ctx, logits, first_row);
  int64_t n = logits.rows();
  ctx.k.run(CrossEntropyArgs{.logits = logits,
                             .targets = ctx.batch.targets.view({ctx.batch.rows()}).narrow(0, first_row, n),
                             .loss = ctx.token_loss.narrow(0, first_row, n),
                             .vocab = vocab_,
                             .grad_scale = ctx.grad_scale,
                             .backward = ctx.backward},
            ctx.compute);
}

void Head::split_cross_entropy(Ctx& ctx, const Tensor& logits, int64_t first_row) const {
  const int64_t n = logits.rows(), first = weight_->box.offset[0], vocab = weight_->box.extent[0];
  const Tensor targets = ctx.batch.targets.view({ctx.batch.rows()}).narrow(0, first_row, n);
  Owned stats(ctx.arena, Bucket::comm, {tp_.size, 3, n}, DType::f32);
  const Tensor own = stats->narrow(0, tp_.rank, 1);
  ctx.k.run(
      SoftmaxStatsArgs{
          .logits = logits, .targets = targets, .stats = own.view({3 * n}), .first = first, .vocab = vocab},
      ctx.compute);
  gather_over_tp(ctx, tp_, own, *stats);
  ctx.k.run(SplitCrossEntropyArgs{.logits = logits,
                                  .targets = targets,
                                  .stats = *stats,
                                  .loss = ctx.token_loss.narrow(0, first_row, n),
                                  .first = first,
                                  .vocab = vocab,
                                  .grad_scale = ctx.grad_scale,
                                  .backward = ctx.backward},
            ctx.compute);
}

Owned Head::forward(Ctx& ctx, const Tensor& x, Saved& saved) {
  ctx.layer = name();
  if (!ctx.logits_rows.empty()) {
    const Owned picked = picked_rows(ctx, x);
    const Owned normed = norm_.forward(ctx, *picked, saved);
    write_logits(ctx, *normed);
    return {};
  }
  require(!ctx.logits || !tp_.sequence, "logits of rows in a row with sequence parallelism");
  const int64_t rows = ctx.logits ? ctx.logits.rows() : x.rows();
  const int64_t first = ctx.logits && ctx.logits_row >= 0 ? ctx.logits_row : x.rows() - rows;
  Owned n = norm_.forward(ctx, x.narrow(0, first, rows), saved);
  if (ctx.logits)
    write_logits(ctx, *n);
  else if (ctx.dtype == DType::f32)
    by_blocks(ctx, std::move(n), saved);
  else
    whole(ctx, std::move(n), saved);
  return {};
}

// x: with sequence this rank's rows; ctx.logits_rows counts those of all.
Owned Head::picked_rows(Ctx& ctx, const Tensor& x) const {
  const Owned gathered = tp_.sequence ? gathered_rows(ctx, tp_, x) : Owned();
  const Tensor all = gathered ? *gathered : x;
  Owned picked = ctx.activation({int64_t(ctx.logits_rows.size()), hidden_});
  for (size_t i = 0; i < ctx.logits_rows.size(); i++)
    ctx.device.copy(picked->narrow(0, int64_t(i), 1), all.narrow(0, ctx.logits_rows[i], 1), ctx.compute);
  return picked;
}

// Fills ctx.logits. Each rank of tp computes its columns, and all ranks get all of them.
void Head::write_logits(Ctx& ctx, const Tensor& n) const {
  const auto product = [&](const Tensor& to) {
    ctx.k.run(MatmulArgs{.a = n, .b = weight_->weight, .c = to, .trans_b = true}, ctx.compute);
  };
  if (tp_.size == 1) return product(ctx.logits);
  Owned parts = ctx.activation({tp_.size, n.rows(), columns()}, ctx.logits.dtype);
  const auto part = [&](int rank) { return parts->narrow(0, rank, 1).view({n.rows(), columns()}); };
  product(part(tp_.rank));
  gather_over_tp(ctx, tp_, part(tp_.rank), *parts);
  for (int rank = 0; rank < tp_.size; rank++) {
    const int64_t first = rank * columns(), used = std::min(columns(), vocab_ - first);
    ctx.k.run(CastArgs{.src = part(rank).narrow(1, 0, used), .dst = ctx.logits.narrow(1, first, used)},
              ctx.compute);
  }
}

// [rows, vocab], rows on cache lines where they are long: with an odd vocabulary (GPT-2's 50257) every row of
// a tile of logits would straddle lines, which costs the product a quarter of its speed.
Owned Head::logits_block(Ctx& ctx, Bucket bucket, int64_t rows) const {
  constexpr int64_t kLong = 256, kLine = 64;
  int64_t width = columns() < kLong ? columns() : (columns() + kLine - 1) / kLine * kLine;
  return Owned(ctx.arena, bucket, {rows, width}, ctx.dtype);
}

void Head::whole(Ctx& ctx, Owned n, Saved& saved) const {
  Owned gathered = tp_.sequence ? gathered_rows(ctx, tp_, *n) : Owned();
  const Tensor all = gathered ? *gathered : *n;
  Owned padded = logits_block(ctx, Bucket::activations, all.rows());
  Tensor logits = padded->narrow(1, 0, columns());
  ctx.k.run(MatmulArgs{.a = all, .b = weight_->weight, .c = logits, .trans_b = true}, ctx.compute);
  gathered.reset();
  cross_entropy(ctx, logits, 0);
  if (!ctx.backward) return;
  if (!weight_->decl.frozen) saved.keep(this, Kept::n, std::move(n));
  saved.keep(this, Kept::dlogits, std::move(padded));
}

void Head::by_blocks(Ctx& ctx, Owned n, Saved& saved) const {
  if (tp_.sequence) n = gathered_rows(ctx, tp_, *n);
  Owned dn, dweight;
  if (ctx.backward) {
    dn = ctx.activation({n->rows(), hidden_});
    if (!weight_->decl.frozen) dweight = ctx.activation({columns(), hidden_}, DType::f32);
  }
  Owned block = logits_block(ctx, Bucket::scratch, std::min(kRows, n->rows()));
  for (int64_t r = 0; r < n->rows(); r += kRows) {
    int64_t rows = std::min(kRows, n->rows() - r);
    Tensor logits = block->narrow(0, 0, rows).narrow(1, 0, columns()), part = n->narrow(0, r, rows);
    ctx.k.run(MatmulArgs{.a = part, .b = weight_->weight, .c = logits, .trans_b = true}, ctx.compute);
    cross_entropy(ctx, logits, r);
    if (!ctx.backward) continue;
    ctx.k.run(MatmulArgs{.a = logits, .b = weight_->weight, .c = dn->narrow(0, r, rows)}, ctx.compute);
    if (dweight)
      ctx.k.run(MatmulArgs{.a = logits, .b = part, .c = *dweight, .trans_a = true, .accumulate = r > 0},
                ctx.compute);
  }
  if (!ctx.backward) return;
  saved.keep(this, Kept::dn, summed(ctx, std::move(dn)));
  if (dweight) saved.keep(this, Kept::dweight, std::move(dweight));
}

// The gradient of the norm's output, from every rank's summand; with sequence of this rank's rows.
Owned Head::summed(Ctx& ctx, Owned dn) const {
  if (tp_.sequence) return scattered_sum(ctx, tp_, *dn);
  sum_over_tp(ctx, tp_, *dn);
  return dn;
}

Owned Head::backward_input(Ctx& ctx, const Tensor&, Saved& saved) {
  ctx.layer = name();
  if (saved.has(this, Kept::dn)) {
    Owned dx = norm_.backward_input(ctx, saved.get(this, Kept::dn), saved);
    saved.drop(this, Kept::dn);
    return dx;
  }
  Owned dn = ctx.activation({ctx.batch.rows(), hidden_});
  ctx.k.run(
      MatmulArgs{.a = saved.get(this, Kept::dlogits).narrow(1, 0, columns()), .b = weight_->weight, .c = *dn},
      ctx.compute);
  if (weight_->decl.frozen) saved.drop(this, Kept::dlogits);
  dn = summed(ctx, std::move(dn));
  return norm_.backward_input(ctx, *dn, saved);
}

void Head::backward_weight(Ctx& ctx, Saved& saved) {
  ctx.layer = name();
  norm_.backward_weight(ctx, saved);
  if (weight_->decl.frozen) return;
  if (saved.has(this, Kept::dweight)) {
    add_gradient(ctx, *weight_, saved.get(this, Kept::dweight));
  } else {
    const Tensor n = saved.get(this, Kept::n);
    Owned gathered = tp_.sequence ? gathered_rows(ctx, tp_, n) : Owned();
    ctx.k.run(MatmulArgs{.a = saved.get(this, Kept::dlogits).narrow(1, 0, columns()),
                         .b = gathered ? *gathered : n,
                         .c = weight_->grad,
                         .trans_a = true,
                         .accumulate = weight_->start_grad()},
              ctx.compute);
  }
  saved.drop_all(this);
}

}  // namespace trireme
