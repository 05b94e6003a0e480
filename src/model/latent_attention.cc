#include "model/latent_attention.h"

#include <cmath>

#include "model/context_parallel.h"
#include "model/kv_cache.h"
#include "spec/recompute.h"

namespace trireme {
namespace {

// DeepSeek's norms of what is compressed have this, whatever the model's norm_eps.
constexpr float kEps = 1e-6f;

// Columns [first, first + n) of each of `heads` groups of `group` columns of a matrix [N, row], as
// [N, heads, n].
Tensor columns(const Tensor& m, int64_t heads, int64_t group, int64_t first, int64_t n) {
  Tensor t = m.narrow(1, first, (heads - 1) * group + n);
  t.shape = {m.rows(), heads, n};
  t.stride = {m.stride[0], group, 1, 0};
  return t;
}
// The same as [B, S, heads, n].
Tensor heads_of(const Ctx& ctx, const Tensor& m, int64_t heads, int64_t group, int64_t first, int64_t n) {
  Tensor t = m.narrow(1, first, (heads - 1) * group + n);
  t.shape = {ctx.batch.sequences, ctx.batch.seq, heads, n};
  t.stride = {ctx.batch.seq * m.stride[0], m.stride[0], group, 1};
  return t;
}

LatentAttention::Sizes local_sizes(LatentAttention::Sizes s, TensorPlace tp) {
  require(s.heads % tp.size == 0, "tp divides the heads");
  s.heads /= tp.size;
  return s;
}

// What compresses: `out` rows that every rank has and uses, whose gradients are summands.
Linear::Part compressing(std::string name, int64_t out, TensorPlace tp) {
  return {.name = std::move(name), .out = out, .shared = tp.size > 1, .first = 0, .used = out};
}
Linear::Part queries(const std::string& name, const LatentAttention::Sizes& s, TensorPlace tp) {
  if (s.q_rank > 0) return compressing(name + ".q_a", s.q_rank, tp);
  return {.name = name + ".q", .out = s.heads * (s.nope + s.rope)};
}

}  // namespace

LatentAttention::LatentAttention(const std::string& name, const Sizes& s, const RopeTable* rope,
                                 TensorPlace tp)
    : sizes_(local_sizes(s, tp)),
      tp_(tp),
      rope_(rope),
      down_({queries(name, s, tp), compressing(name + ".kv_a", s.kv_rank + s.rope, tp)}, s.hidden, s.bias,
            s.init_std, Divide::columns, tp),
      kv_up_({{name + ".kv_b", s.heads * (s.nope + s.value)}}, s.kv_rank, false, s.init_std,
             Divide::own_columns, tp),
      out_({{name + ".o", s.hidden}}, s.heads * s.value, s.bias, s.out_init_std, Divide::rows, tp),
      kv_norm_(name + ".kv_norm", s.kv_rank, kEps),
      probs_(name + ".probs", s.attn_pdrop),
      resid_(name + ".resid", s.resid_pdrop, tp) {
  if (s.q_rank == 0) return;
  q_up_.emplace(std::vector<Linear::Part>{{name + ".q_b", s.heads * (s.nope + s.rope)}}, s.q_rank, false,
                s.init_std, Divide::own_columns, tp);
  q_norm_.emplace(name + ".q_norm", s.q_rank, kEps);
}

void LatentAttention::declare(std::vector<ParamDecl>& decls) const {
  down_.declare(decls);
  if (q_up_) q_norm_->declare(decls), q_up_->declare(decls);
  kv_norm_.declare(decls);
  kv_up_.declare(decls);
  out_.declare(decls);
}
void LatentAttention::bind(ParamSet& set) {
  down_.bind(set);
  if (q_up_) q_norm_->bind(set), q_up_->bind(set);
  kv_norm_.bind(set);
  kv_up_.bind(set);
  out_.bind(set);
}

Tensor LatentAttention::compressed_kv(const Tensor& down) const {
  return columns(down, 1, sizes_.kv_rank, first(), sizes_.kv_rank);
}
Tensor LatentAttention::shared_key(const Tensor& down) const {
  return columns(down, 1, sizes_.rope, first() + sizes_.kv_rank, sizes_.rope);
}

Tensor LatentAttention::turned_of(const Tensor& q) const {
  return columns(q, sizes_.heads, key(), sizes_.nope, sizes_.rope);
}

void LatentAttention::rotate(Ctx& ctx, const Tensor& x, bool inverse) const {
  ctx.k.run(RopeArgs{.x = x,
                     .cos = rope_->cos,
                     .sin = rope_->sin,
                     .positions = ctx.batch.positions,
                     .inverse = inverse,
                     .interleaved = sizes_.rope_interleaved},
            ctx.compute);
}

Owned LatentAttention::keys(Ctx& ctx, const Tensor& kv, const Tensor& down) const {
  const Sizes& s = sizes_;
  Owned k = ctx.activation({kv.rows(), s.heads * key()});
  const Tensor shared = down.narrow(1, first() + s.kv_rank, s.rope);
  ctx.k.run(ConcatSharedArgs{.a = columns(kv, s.heads, s.nope + s.value, 0, s.nope),
                             .b = shared,
                             .y = columns(*k, s.heads, key(), 0, key())},
            ctx.compute);
  return k;
}

LatentAttention::Heads LatentAttention::split(const Ctx& ctx, const Tensor& q, const Tensor& k,
                                              const Tensor& kv) const {
  const Sizes& s = sizes_;
  return {heads_of(ctx, q, s.heads, key(), 0, key()), heads_of(ctx, k, s.heads, key(), 0, key()),
          heads_of(ctx, kv, s.heads, s.nope + s.value, s.nope, s.value)};
}

float LatentAttention::scale() const {
  return float(sizes_.scores) / std::sqrt(float(key()));
}
DropoutMask LatentAttention::mask(const Ctx& ctx) const {
  return probs_.probabilities(ctx, sizes_.heads * tp_.size, tp_.rank * sizes_.heads);
}

// As Attention does: from the cache where there is something before these tokens. Returns what attend() does.
Owned LatentAttention::attend_heads(Ctx& ctx, const Heads& t, const Tensor& o, const Tensor& lse) const {
  if (attend_to_cache(ctx, t.q, t.k, t.v, o, scale())) return {};
  return attend(
      ctx, AttentionArgs{
               .q = t.q, .k = t.k, .v = t.v, .o = o, .lse = lse, .scale = scale(), .dropout = mask(ctx)});
}

// k is not kept: the backward pass copies it together again from what is.
Owned LatentAttention::forward(Ctx& ctx, const Tensor& x, const Tensor& residual, Saved& saved) const {
  const Sizes& s = sizes_;
  Owned down = down_.forward(ctx, x, saved);
  const int64_t n = down->rows();  // with sequence parallelism more than x has
  Owned c_q, q_up;
  if (q_up_) {
    c_q = ctx.activation({n, s.q_rank});
    q_norm_->forward(ctx, columns(*down, 1, s.q_rank, 0, s.q_rank), columns(*c_q, 1, s.q_rank, 0, s.q_rank),
                     saved);
    q_up = q_up_->forward(ctx, *c_q, saved);
  }
  const Tensor q = q_up ? *q_up : down->narrow(1, 0, first());
  Owned c_kv = ctx.activation({n, s.kv_rank});
  kv_norm_.forward(ctx, compressed_kv(*down), columns(*c_kv, 1, s.kv_rank, 0, s.kv_rank), saved);
  Owned kv = kv_up_.forward(ctx, *c_kv, saved);
  rotate(ctx, turned_of(q), false), rotate(ctx, shared_key(*down), false);
  Owned o = ctx.activation({n, s.heads * s.value});
  Owned lse = ctx.activation({ctx.batch.sequences, s.heads, ctx.batch.seq}, DType::f32);
  Owned k = keys(ctx, *kv, *down);
  Owned exchanged =
      attend_heads(ctx, split(ctx, q, *k, *kv), heads_of(ctx, *o, s.heads, s.value, 0, s.value), *lse);
  if (exchanged) saved.keep(this, Kept::exchanged, std::move(exchanged));
  k.reset();
  const bool drop = resid_.on(ctx);
  Owned y = out_.forward(ctx, *o, saved, drop ? Tensor() : residual);
  if (drop) resid_.forward(ctx, *y, *y, residual);
  saved.keep(this, Kept::down, std::move(down));
  if (c_q) saved.keep(this, Kept::c_q, std::move(c_q)), saved.keep(this, Kept::q, std::move(q_up));
  saved.keep(this, Kept::c_kv, std::move(c_kv));
  saved.keep(this, Kept::kv, std::move(kv));
  saved.keep(this, Kept::o, std::move(o));
  saved.keep(this, Kept::lse, std::move(lse));
  return y;
}

void LatentAttention::let_go(const Recompute& r, Saved& saved) const {
  if (r.has("qkv")) saved.let_go(this, Kept::q), saved.let_go(this, Kept::kv);
  if (r.has("o")) saved.let_go(this, Kept::o);
}

// The shared key was turned in its place and is kept.
void LatentAttention::again(Ctx& ctx, const Tensor&, Saved& saved) const {
  const Sizes& s = sizes_;
  if (saved.gone(this, Kept::kv))
    saved.restore(this, Kept::kv, kv_up_.again(ctx, saved.get(this, Kept::c_kv)));
  if (saved.gone(this, Kept::q)) {
    Owned q = q_up_->again(ctx, saved.get(this, Kept::c_q));
    rotate(ctx, turned_of(*q), false);
    saved.restore(this, Kept::q, std::move(q));
  }
  if (!saved.gone(this, Kept::o)) return;
  const Tensor down = saved.get(this, Kept::down), kv = saved.get(this, Kept::kv);
  const Tensor q = q_up_ ? saved.get(this, Kept::q) : down.narrow(1, 0, first());
  Owned o = ctx.activation({down.rows(), s.heads * s.value}), k = keys(ctx, kv, down);
  // The tensors that ranks exchange for it were kept, so a second copy is freed at once.
  attend_heads(ctx, split(ctx, q, *k, kv), heads_of(ctx, *o, s.heads, s.value, 0, s.value),
               saved.get(this, Kept::lse));
  saved.restore(this, Kept::o, std::move(o));
}

Owned LatentAttention::output_again(Ctx& ctx, const Tensor& residual, const Saved& saved) const {
  const bool drop = resid_.on(ctx);
  Owned y = out_.again(ctx, saved.get(this, Kept::o), drop ? Tensor() : residual);
  if (drop) resid_.forward(ctx, *y, *y, residual);
  return y;
}

Owned LatentAttention::backward_input(Ctx& ctx, const Tensor& dy, Saved& saved) const {
  const Sizes& s = sizes_;
  const Tensor down = saved.get(this, Kept::down), kv = saved.get(this, Kept::kv),
               o = saved.get(this, Kept::o);
  const Tensor q = q_up_ ? saved.get(this, Kept::q) : down.narrow(1, 0, first());
  Owned dropped = resid_.backward(ctx, dy);
  Owned dout = out_.backward_input(ctx, dropped ? *dropped : dy, saved);
  if (dropped) saved.keep(this, Kept::dropped, std::move(dropped));

  Owned ddown = ctx.activation(down.shape), dkv = ctx.activation(kv.shape), dq_up;
  if (q_up_) dq_up = ctx.activation(q.shape);
  const Tensor dq = q_up_ ? *dq_up : ddown->narrow(1, 0, first());
  Owned k = keys(ctx, kv, down), dk = ctx.activation(k->shape);
  const Heads t = split(ctx, q, *k, kv), g = split(ctx, dq, *dk, *dkv);
  const bool exchanged = saved.has(this, Kept::exchanged);
  attend_backward(ctx,
                  AttentionBackwardArgs{.q = t.q,
                                        .k = t.k,
                                        .v = t.v,
                                        .o = heads_of(ctx, o, s.heads, s.value, 0, s.value),
                                        .lse = saved.get(this, Kept::lse),
                                        .dout = heads_of(ctx, *dout, s.heads, s.value, 0, s.value),
                                        .dq = g.q,
                                        .dk = g.k,
                                        .dv = g.v,
                                        .scale = scale(),
                                        .dropout = mask(ctx)},
                  exchanged ? saved.get(this, Kept::exchanged) : Tensor());
  if (exchanged) saved.drop(this, Kept::exchanged);
  k.reset(), dout.reset();
  saved.drop(this, Kept::lse), saved.drop(this, Kept::kv);
  if (q_up_) saved.drop(this, Kept::q);
  ctx.k.run(ConcatSharedBackwardArgs{.dy = columns(*dk, s.heads, key(), 0, key()),
                                     .da = columns(*dkv, s.heads, s.nope + s.value, 0, s.nope),
                                     .db = ddown->narrow(1, first() + s.kv_rank, s.rope)},
            ctx.compute);
  dk.reset();
  rotate(ctx, turned_of(dq), true), rotate(ctx, shared_key(*ddown), true);
  {
    Owned dc = kv_up_.backward_input(ctx, *dkv, saved);
    kv_norm_.backward_input(ctx, columns(*dc, 1, s.kv_rank, 0, s.kv_rank), compressed_kv(*ddown), saved);
  }
  saved.keep(this, Kept::dkv, std::move(dkv));
  if (q_up_) {
    Owned dc = q_up_->backward_input(ctx, dq, saved);
    q_norm_->backward_input(ctx, columns(*dc, 1, s.q_rank, 0, s.q_rank),
                            columns(*ddown, 1, s.q_rank, 0, s.q_rank), saved);
    saved.keep(this, Kept::dq, std::move(dq_up));
  }
  saved.drop(this, Kept::down);
  Owned dx = down_.backward_input(ctx, *ddown, saved);
  saved.keep(this, Kept::ddown, std::move(ddown));
  return dx;
}

void LatentAttention::backward_weight(Ctx& ctx, Saved& saved) const {
  out_.backward_weight(ctx, saved);
  kv_up_.backward_weight(ctx, saved);
  kv_norm_.backward_weight(ctx, saved);
  if (q_up_) q_up_->backward_weight(ctx, saved), q_norm_->backward_weight(ctx, saved);
  down_.backward_weight(ctx, saved);
  saved.drop_all(this);
}

}  // namespace trireme
