#include "model/attention.h"

#include <algorithm>
#include <cmath>

#include "model/context_parallel.h"
#include "model/kv_cache.h"
#include "spec/recompute.h"

namespace trireme {
namespace {

// Columns [first, first + heads * d) of a fused matrix [B * S, row] as [B, S, heads, d].
Tensor heads_of(const Tensor& fused, int64_t batch, int64_t seq, int64_t first, int64_t heads, int64_t d) {
  int64_t row = fused.cols();
  Tensor t = fused.narrow(1, first, heads * d);
  t.shape = {batch, seq, heads, d};
  t.stride = {seq * row, row, d, 1};
  return t;
}

// Columns [first, first + heads * d) of a matrix [N, row] as [N, heads, d].
Tensor rows_of_heads(const Tensor& m, int64_t first, int64_t heads, int64_t d) {
  Tensor t = m.narrow(1, first, heads * d);
  t.shape = {m.rows(), heads, d};
  t.stride = {m.cols(), d, 1, 0};
  return t;
}

Attention::Sizes local_sizes(Attention::Sizes s, TensorPlace tp) {
  require(s.heads % tp.size == 0 && (s.kv_heads % tp.size == 0 || tp.size % s.kv_heads == 0),
          "tp divides the query heads, and the key/value heads or is a multiple of them");
  s.heads /= tp.size;
  s.kv_heads = std::max<int64_t>(1, s.kv_heads / tp.size);
  return s;
}

// One head for several ranks, or some heads for each.
Linear::Part keys_or_values(std::string name, const Attention::Sizes& s, TensorPlace tp) {
  const bool shared = s.kv_heads < tp.size;
  const int64_t head = tp.rank * s.kv_heads / tp.size;
  return {.name = std::move(name),
          .out = s.kv_heads * s.head_dim,
          .shared = shared,
          .first = head * s.head_dim,
          .used = s.head_dim};
}

}  // namespace

Attention::Attention(const std::string& name, const Sizes& s, const RopeTable* rope, TensorPlace tp)
    : sizes_(local_sizes(s, tp)),
      tp_(tp),
      rope_(rope),
      qkv_({{name + ".q", s.heads * s.head_dim},
            keys_or_values(name + ".k", s, tp),
            keys_or_values(name + ".v", s, tp)},
           s.hidden, s.qkv_bias, s.init_std, Divide::columns, tp),
      out_({{name + ".o", s.hidden}}, s.heads * s.head_dim, s.out_bias, s.out_init_std, Divide::rows, tp),
      probs_(name + ".probs", s.attn_pdrop),
      resid_(name + ".resid", s.resid_pdrop, tp) {
  qkv_.input_is_its_own();
  if (!s.qk_norm_eps) return;
  // Each rank sees the heads it computes: the gradients are partial sums.
  q_norm_.emplace(name + ".q_norm", s.head_dim, *s.qk_norm_eps);
  k_norm_.emplace(name + ".k_norm", s.head_dim, *s.qk_norm_eps);
}

void Attention::declare(std::vector<ParamDecl>& decls) const {
  qkv_.declare(decls);
  if (q_norm_) q_norm_->declare(decls), k_norm_->declare(decls);
  out_.declare(decls);
}
void Attention::bind(ParamSet& set) {
  qkv_.bind(set);
  if (q_norm_) q_norm_->bind(set), k_norm_->bind(set);
  out_.bind(set);
}

Attention::Heads Attention::split(const Ctx& ctx, const Tensor& qk, const Tensor& qkv) const {
  int64_t h = sizes_.heads, kv = sizes_.kv_heads, d = sizes_.head_dim;
  int64_t b = ctx.batch.sequences, s = ctx.batch.seq;
  return {heads_of(qk, b, s, 0, h, d), heads_of(qk, b, s, h * d, kv, d),
          heads_of(qkv, b, s, (h + kv) * d, kv, d)};
}
Tensor Attention::q_heads(const Tensor& qk) const {
  return rows_of_heads(qk, 0, sizes_.heads, sizes_.head_dim);
}
Tensor Attention::k_heads(const Tensor& qk) const {
  return rows_of_heads(qk, sizes_.heads * sizes_.head_dim, sizes_.kv_heads, sizes_.head_dim);
}

// q and k lie side by side, so one call turns both.
void Attention::rotate(Ctx& ctx, const Tensor& qk, bool inverse) const {
  if (!rope_) return;
  Tensor x = rows_of_heads(qk, 0, sizes_.heads + sizes_.kv_heads, sizes_.head_dim);
  ctx.k.run(
      RopeArgs{
          .x = x, .cos = rope_->cos, .sin = rope_->sin, .positions = ctx.batch.positions, .inverse = inverse},
      ctx.compute);
}

DropoutMask Attention::mask(const Ctx& ctx) const {
  return probs_.probabilities(ctx, sizes_.heads * tp_.size, tp_.rank * sizes_.heads);
}

// Normalised q and k [N, (H + KV) D]; empty where heads are not normalised. The backward pass wants them as
// they were too, so they get memory of their own.
Owned Attention::normalise(Ctx& ctx, const Tensor& qkv, Saved& saved) const {
  if (!q_norm_) return {};
  Owned qk = ctx.activation({qkv.rows(), (sizes_.heads + sizes_.kv_heads) * sizes_.head_dim});
  q_norm_->forward(ctx, q_heads(qkv), q_heads(*qk), saved);
  k_norm_->forward(ctx, k_heads(qkv), k_heads(*qk), saved);
  return qk;
}

// o [N, H D], lse f32 [B, H, S].
AttentionArgs Attention::attention(const Ctx& ctx, const Tensor& qk, const Tensor& qkv, const Tensor& o,
                                   const Tensor& lse) const {
  const Heads t = split(ctx, qk, qkv);
  return {.q = t.q,
          .k = t.k,
          .v = t.v,
          .o = o.view({ctx.batch.sequences, ctx.batch.seq, sizes_.heads, sizes_.head_dim}),
          .lse = lse,
          .scale = 1 / std::sqrt(float(sizes_.head_dim)),
          .dropout = mask(ctx)};
}

Owned Attention::forward(Ctx& ctx, const Tensor& x, const Tensor& residual, Saved& saved) const {
  Owned qkv = qkv_.forward(ctx, x, saved);
  Owned normed = normalise(ctx, *qkv, saved);
  const Tensor qk = normed ? *normed : *qkv;
  rotate(ctx, qk, false);
  int64_t b = ctx.batch.sequences, s = ctx.batch.seq, h = sizes_.heads, d = sizes_.head_dim;
  Owned o = ctx.activation({b * s, h * d}), lse = ctx.activation({b, h, s}, DType::f32);
  Owned exchanged;
  const Heads t = split(ctx, qk, *qkv);
  if (!attend_to_cache(ctx, t.q, t.k, t.v, o->view({b, s, h, d}), 1 / std::sqrt(float(d))))
    exchanged = attend(ctx, attention(ctx, qk, *qkv, *o, *lse));
  if (exchanged) saved.keep(this, Kept::exchanged, std::move(exchanged));
  bool drop = resid_.on(ctx);
  Owned y = out_.forward(ctx, *o, saved, drop ? Tensor() : residual);
  if (drop) resid_.forward(ctx, *y, *y, residual);
  saved.keep(this, Kept::qkv, std::move(qkv));
  if (normed) saved.keep(this, Kept::qk, std::move(normed));
  saved.keep(this, Kept::o, std::move(o));
  saved.keep(this, Kept::lse, std::move(lse));
  return y;
}

void Attention::let_go(const Recompute& r, Saved& saved) const {
  if (r.has("qkv")) saved.let_go(this, Kept::qkv), saved.let_go(this, Kept::qk);
  if (r.has("o")) saved.let_go(this, Kept::o);
}

void Attention::again(Ctx& ctx, const Tensor& x, Saved& saved) const {
  if (saved.gone(this, Kept::qkv)) {
    Owned qkv = qkv_.again(ctx, x), qk;
    if (q_norm_) {
      qk = ctx.activation({qkv->rows(), (sizes_.heads + sizes_.kv_heads) * sizes_.head_dim});
      q_norm_->again(ctx, q_heads(*qkv), q_heads(*qk), saved);
      k_norm_->again(ctx, k_heads(*qkv), k_heads(*qk), saved);
    }
    rotate(ctx, qk ? *qk : *qkv, false);
    saved.restore(this, Kept::qkv, std::move(qkv));
    if (qk) saved.restore(this, Kept::qk, std::move(qk));
  }
  if (!saved.gone(this, Kept::o)) return;
  const Tensor qkv = saved.get(this, Kept::qkv);
  Owned o = ctx.activation({qkv.rows(), sizes_.heads * sizes_.head_dim});
  // What ranks exchange for it was kept: of that a second copy goes at once.
  attend(ctx, attention(ctx, q_norm_ ? saved.get(this, Kept::qk) : qkv, qkv, *o, saved.get(this, Kept::lse)));
  saved.restore(this, Kept::o, std::move(o));
}

Owned Attention::output_again(Ctx& ctx, const Tensor& residual, const Saved& saved) const {
  const bool drop = resid_.on(ctx);
  Owned y = out_.again(ctx, saved.get(this, Kept::o), drop ? Tensor() : residual);
  if (drop) resid_.forward(ctx, *y, *y, residual);
  return y;
}

Owned Attention::backward_input(Ctx& ctx, const Tensor& dy, Saved& saved) const {
  int64_t b = ctx.batch.sequences, s = ctx.batch.seq, h = sizes_.heads, d = sizes_.head_dim;
  Tensor qkv = saved.get(this, Kept::qkv), o = saved.get(this, Kept::o);
  Owned dropped = resid_.backward(ctx, dy);
  Owned dout = out_.backward_input(ctx, dropped ? *dropped : dy, saved);
  if (dropped) saved.keep(this, Kept::dropped, std::move(dropped));
  Owned dqkv = ctx.activation(qkv.shape);
  Heads t = split(ctx, q_norm_ ? saved.get(this, Kept::qk) : qkv, qkv), g = split(ctx, *dqkv, *dqkv);
  const bool exchanged = saved.has(this, Kept::exchanged);
  attend_backward(ctx,
                  AttentionBackwardArgs{.q = t.q,
                                        .k = t.k,
                                        .v = t.v,
                                        .o = o.view({b, s, h, d}),
                                        .lse = saved.get(this, Kept::lse),
                                        .dout = dout->view({b, s, h, d}),
                                        .dq = g.q,
                                        .dk = g.k,
                                        .dv = g.v,
                                        .scale = 1 / std::sqrt(float(d)),
                                        .dropout = mask(ctx)},
                  exchanged ? saved.get(this, Kept::exchanged) : Tensor());
  if (exchanged) saved.drop(this, Kept::exchanged);
  rotate(ctx, *dqkv, true);
  if (q_norm_) {
    q_norm_->backward_input(ctx, q_heads(*dqkv), q_heads(*dqkv), saved);
    k_norm_->backward_input(ctx, k_heads(*dqkv), k_heads(*dqkv), saved);
    saved.drop(this, Kept::qk);
  }
  saved.drop(this, Kept::qkv);
  saved.drop(this, Kept::lse);
  dout.reset();
  Owned dx = qkv_.backward_input(ctx, *dqkv, saved);
  saved.keep(this, Kept::dqkv, std::move(dqkv));
  return dx;
}

void Attention::backward_weight(Ctx& ctx, Saved& saved) const {
  out_.backward_weight(ctx, saved);
  if (q_norm_) q_norm_->backward_weight(ctx, saved), k_norm_->backward_weight(ctx, saved);
  qkv_.backward_weight(ctx, saved);
  saved.drop_all(this);
}

}  // namespace trireme
