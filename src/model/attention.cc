#include "model/attention.h"

#include <cmath>

#include "model/kv_cache.h"

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

}  // namespace

Attention::Attention(const std::string& name, const Sizes& s, const RopeTable* rope)
    : sizes_(s),
      rope_(rope),
      qkv_({{name + ".q", s.heads * s.head_dim},
            {name + ".k", s.kv_heads * s.head_dim},
            {name + ".v", s.kv_heads * s.head_dim}},
           s.hidden, s.bias, s.init_std),
      out_({{name + ".o", s.hidden}}, s.heads * s.head_dim, s.bias, s.out_init_std) {}

void Attention::declare(std::vector<ParamDecl>& decls) const {
  qkv_.declare(decls);
  out_.declare(decls);
}
void Attention::bind(ParamSet& set) {
  qkv_.bind(set);
  out_.bind(set);
}

Attention::Heads Attention::split(const Ctx& ctx, const Tensor& qkv) const {
  auto [hidden, h, kv, d, bias, std1, std2] = sizes_;
  int64_t b = ctx.batch.sequences, s = ctx.batch.seq;
  return {heads_of(qkv, b, s, 0, h, d), heads_of(qkv, b, s, h * d, kv, d),
          heads_of(qkv, b, s, (h + kv) * d, kv, d)};
}

// q and k lie side by side, so one call turns both.
void Attention::rotate(Ctx& ctx, const Tensor& qkv, bool inverse) const {
  if (!rope_) return;
  int64_t heads = sizes_.heads + sizes_.kv_heads, d = sizes_.head_dim;
  Tensor x = qkv.narrow(1, 0, heads * d);
  x.shape = {qkv.rows(), heads, d};
  x.stride = {qkv.cols(), d, 1, 0};
  ctx.k.run(
      RopeArgs{
          .x = x, .cos = rope_->cos, .sin = rope_->sin, .positions = ctx.batch.positions, .inverse = inverse},
      ctx.compute);
}

// Keys and values of new tokens go into the cache. True: o [B, S, H, D] was computed from it. False where
// there is nothing before these tokens: the attention of training, with its bits.
bool Attention::attend_to_cache(Ctx& ctx, const Heads& t, const Tensor& o) const {
  if (!ctx.cache) return false;
  KvCache::Part cache = ctx.cache->next();
  const Tensor& positions = ctx.batch.positions;
  ctx.k.run(
      CacheAppendArgs{.k = t.k, .v = t.v, .positions = positions, .k_cache = cache.k, .v_cache = cache.v},
      ctx.compute);
  if (ctx.cache->fresh()) return false;
  ctx.k.run(CachedAttentionArgs{.q = t.q,
                                .k = cache.k,
                                .v = cache.v,
                                .positions = positions,
                                .o = o,
                                .scale = 1 / std::sqrt(float(sizes_.head_dim))},
            ctx.compute);
  return true;
}

Owned Attention::forward(Ctx& ctx, const Tensor& x, const Tensor& residual, Saved& saved) const {
  Owned qkv = qkv_.forward(ctx, x, saved);
  rotate(ctx, *qkv, false);
  int64_t b = ctx.batch.sequences, s = ctx.batch.seq, h = sizes_.heads, d = sizes_.head_dim;
  Owned o = ctx.activation({x.rows(), h * d}), lse = ctx.activation({b, h, s}, DType::f32);
  Heads t = split(ctx, *qkv);
  if (!attend_to_cache(ctx, t, o->view({b, s, h, d})))
    ctx.k.run(AttentionArgs{.q = t.q,
                            .k = t.k,
                            .v = t.v,
                            .o = o->view({b, s, h, d}),
                            .lse = *lse,
                            .scale = 1 / std::sqrt(float(d))},
              ctx.compute);
  Owned y = out_.forward(ctx, *o, saved, residual);
  saved.keep(this, "qkv", std::move(qkv));
  saved.keep(this, "o", std::move(o));
  saved.keep(this, "lse", std::move(lse));
  return y;
}

Owned Attention::backward_input(Ctx& ctx, const Tensor& dy, Saved& saved) const {
  int64_t b = ctx.batch.sequences, s = ctx.batch.seq, h = sizes_.heads, d = sizes_.head_dim;
  Tensor qkv = saved.get(this, "qkv"), o = saved.get(this, "o");
  Owned dout = out_.backward_input(ctx, dy, saved);
  Owned dqkv = ctx.activation(qkv.shape);
  Heads t = split(ctx, qkv), g = split(ctx, *dqkv);
  ctx.k.run(AttentionBackwardArgs{.q = t.q,
                                  .k = t.k,
                                  .v = t.v,
                                  .o = o.view({b, s, h, d}),
                                  .lse = saved.get(this, "lse"),
                                  .dout = dout->view({b, s, h, d}),
                                  .dq = g.q,
                                  .dk = g.k,
                                  .dv = g.v,
                                  .scale = 1 / std::sqrt(float(d))},
            ctx.compute);
  rotate(ctx, *dqkv, true);
  saved.drop(this, "qkv");
  saved.drop(this, "lse");
  dout.reset();
  Owned dx = qkv_.backward_input(ctx, *dqkv, saved);
  saved.keep(this, "dqkv", std::move(dqkv));
  return dx;
}

void Attention::backward_weight(Ctx& ctx, Saved& saved) const {
  out_.backward_weight(ctx, saved);
  qkv_.backward_weight(ctx, saved);
  saved.drop_all(this);
}

}  // namespace trireme
