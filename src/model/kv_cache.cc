#include "model/kv_cache.h"

#include "model/tensor_parallel.h"

namespace trireme {

// In memory [slots, KV, capacity, D]: the rows that one head streams past lie one behind the other.
KvCache::KvCache(Arena& arena, const Sizes& s) : sizes_(s) {
  auto hold = [&](int64_t columns) {
    memory_.emplace_back(arena, Bucket::activations, Shape{s.slots, s.kv_heads, s.capacity, columns},
                         s.dtype);
    Tensor t = *memory_.back();
    std::swap(t.shape.dim[1], t.shape.dim[2]);
    std::swap(t.stride[1], t.stride[2]);
    return t;
  };
  for (int64_t b = 0; b < s.blocks; b++) {
    Tensor k = hold(s.head_dim);
    parts_.push_back({k, hold(s.v_head_dim)});
  }
}

void KvCache::begin(int64_t first, int64_t texts, int64_t tokens, bool fresh) {
  require(first >= 0 && texts > 0 && first + texts <= sizes_.slots, "a pass over slots the cache has not");
  first_ = first;
  texts_ = texts;
  tokens_ = tokens;
  fresh_ = fresh;
  next_ = 0;
}

KvCache::Part KvCache::next() {
  require(next_ < parts_.size(), "more attention layers than the cache has parts");
  const Part& p = parts_[next_++];
  return {p.k.narrow(0, first_, texts_), p.v.narrow(0, first_, texts_)};
}

KvCache::Part KvCache::slot(int64_t block, int64_t slot, int64_t length) const {
  const Part& p = parts_.at(size_t(block));
  return {p.k.narrow(0, slot, 1).narrow(1, 0, length), p.v.narrow(0, slot, 1).narrow(1, 0, length)};
}

namespace {

// The rows of all ranks of cp, in the text's order: t is this rank's part [1, S / P, ...], and parts are
// contiguous. Returns [1, S, ...].
Owned gathered_over_cp(Ctx& ctx, const Tensor& t) {
  Communicator& cp = *ctx.groups.cp.comm;
  Shape all = t.shape;
  all.dim[1] *= cp.size();
  Owned own = ctx.activation(t.shape, t.dtype), full = ctx.activation(all, t.dtype);
  ctx.k.run(CastArgs{.src = t, .dst = *own}, ctx.compute);
  timed(ctx, [&] { cp.all_gather({.shard = *own, .full = *full}, ctx.compute); });
  return full;
}

}  // namespace

bool attend_to_cache(Ctx& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                     float scale) {
  if (!ctx.cache) return false;
  const KvCache::Part cache = ctx.cache->next();
  CacheAppendArgs append{
      .k = k, .v = v, .positions = ctx.batch.positions, .k_cache = cache.k, .v_cache = cache.v};
  Owned all_k, all_v, all_positions;
  if (ctx.groups.cp.comm) {
    all_k = gathered_over_cp(ctx, k);
    all_v = gathered_over_cp(ctx, v);
    all_positions = ctx.activation({1, all_k->shape[1]}, DType::i32);
    timed(ctx, [&] {
      ctx.groups.cp.comm->all_gather({.shard = ctx.batch.positions, .full = *all_positions}, ctx.compute);
    });
    const int64_t n = ctx.cache->tokens();
    append.k = all_k->narrow(1, 0, n);
    append.v = all_v->narrow(1, 0, n);
    append.positions = all_positions->narrow(1, 0, n);
  }
  ctx.k.run(append, ctx.compute);
  if (ctx.cache->fresh()) return false;
  ctx.k.run(
      CachedAttentionArgs{
          .q = q, .k = cache.k, .v = cache.v, .positions = ctx.batch.positions, .o = o, .scale = scale},
      ctx.compute);
  return true;
}

}  // namespace trireme
