#include "model/context_parallel.h"

#include <array>
#include <chrono>

#include "mesh/context.h"

namespace trireme {
namespace {

void wait(Ctx& ctx, Event e) {
  const auto begin = std::chrono::steady_clock::now();
  ctx.device.wait(ctx.compute, e);
  if (ctx.groups.waited_s)
    *ctx.groups.waited_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}
void copy(Ctx& ctx, const Tensor& from, const Tensor& to) {
  ctx.k.run(CastArgs{.src = from, .dst = to}, ctx.compute);
}

// ---- ring ----

class Ring {
 public:
  Ring(Ctx& ctx, const Tensor& q, const Tensor& k, const Tensor& v)
      : ctx_(ctx),
        group_(ctx.groups.cp),
        ranks_(group_.comm->size()),
        rank_(group_.comm->rank()),
        rows_(q.shape[1]),
        keys_(k.shape),
        values_(v.shape) {}

  // Whose keys are here in round t: those of ranks before this one, one further back each round.
  int owner(int round) const { return (rank_ - round + ranks_) % ranks_; }
  std::optional<ContextBlock> block(int round) const {
    return block_of(group_.place(), rows_ * ranks_, owner(round));
  }
  bool last(int round) const { return round + 1 == ranks_; }
  int ranks() const { return ranks_; }
  // Of whole sequences; where in them the keys lie that are here in round t (t = 0: this rank's rows).
  int64_t seq() const { return rows_ * ranks_; }
  PositionRuns places(int round) const { return group_.place().runs(seq(), owner(round)); }

  // Keys of a rank and behind them its values, in one buffer; and the two of it.
  Owned both(DType t) { return ctx_.activation({keys_.numel() + values_.numel()}, t); }
  Tensor keys(const Tensor& both) const { return both.narrow(0, 0, keys_.numel()).view(keys_); }
  Tensor values(const Tensor& both) const {
    return both.narrow(0, keys_.numel(), values_.numel()).view(values_);
  }

  // `send` to the next rank and `recv` from the one before, behind what compute was given.
  Event pass(const Tensor& send, const Tensor& recv) {
    const std::array<P2p, 2> ops = {P2p{.buf = send, .peer = (rank_ + 1) % ranks_, .send = true},
                                    P2p{.buf = recv, .peer = (rank_ + ranks_ - 1) % ranks_, .send = false}};
    ctx_.device.wait(group_.stream, ctx_.device.record(ctx_.compute));
    group_.comm->p2p({.ops = ops}, group_.stream);
    return ctx_.device.record(group_.stream);
  }

  // Where documents begin among the block's keys, of its rows: i32 [B, q_rows].
  Tensor first(int round, const ContextBlock& b) const {
    const Tensor& all = ctx_.batch.documents;
    if (!all) return {};
    return Tensor(all.narrow(0, owner(round), 1).data, {keys_[0], b.q_rows}, DType::i32);
  }

 private:
  Ctx& ctx_;
  const ContextGroup& group_;
  int ranks_, rank_;
  int64_t rows_;         // S / P
  Shape keys_, values_;  // [B, S/P, KV, D], each of its own D
};

// That of a block's probabilities, from that of all.
DropoutMask dropout_of(const Ring& ring, const DropoutMask& all, int round, const ContextBlock& b) {
  if (!all) return {};
  DropoutMask m = all;
  m.seq = ring.seq();
  m.rows = ring.places(0).from(b.q_begin), m.keys = ring.places(round).from(b.k_begin);
  return m;
}

Tensor q_part(const Tensor& t, const ContextBlock& b) {
  return t.narrow(1, b.q_begin, b.q_rows);
}
Tensor k_part(const Tensor& t, const ContextBlock& b) {
  return t.narrow(1, b.k_begin, b.k_rows);
}
Tensor lse_part(const Tensor& lse, const ContextBlock& b) {
  return lse.narrow(2, b.q_begin, b.q_rows);
}

// The first round is the rank's own block, which covers all rows; the others go on from it.
void ring_attend(Ctx& ctx, const AttentionArgs& p) {
  Ring ring(ctx, p.q, p.k, p.v);
  std::array<Owned, 2> kv = {ring.both(p.k.dtype), ring.both(p.k.dtype)};
  const bool sums = p.o.dtype == DType::f32;
  Owned o_sums = sums ? Owned() : ctx.activation(p.o.shape, DType::f32);
  const Tensor o = sums ? p.o : *o_sums;
  copy(ctx, p.k, ring.keys(*kv[0]));
  copy(ctx, p.v, ring.values(*kv[0]));
  for (int t = 0; t < ring.ranks(); t++) {
    const Tensor here = *kv[size_t(t % 2)];
    Event arrived;
    if (!ring.last(t)) arrived = ring.pass(here, *kv[size_t(1 - t % 2)]);
    if (const auto b = ring.block(t))
      ctx.k.run(AttentionArgs{.q = q_part(p.q, *b),
                              .k = k_part(ring.keys(here), *b),
                              .v = k_part(ring.values(here), *b),
                              .o = q_part(o, *b),
                              .lse = lse_part(p.lse, *b),
                              .scale = p.scale,
                              .causal = b->causal,
                              .offset = b->offset,
                              .first = ring.first(t, *b),
                              .accumulate = t > 0,
                              .dropout = dropout_of(ring, p.dropout, t, *b)},
                ctx.compute);
    if (!ring.last(t)) wait(ctx, arrived);
  }
  if (!sums) copy(ctx, o, p.o);
}

// The gradients of keys and values travel with them: what a rank adds is worked out while they are on their
// way, and after P hops they are home.
void ring_backward(Ctx& ctx, const AttentionBackwardArgs& p) {
  Ring ring(ctx, p.q, p.k, p.v);
  std::array<Owned, 2> kv = {ring.both(p.k.dtype), ring.both(p.k.dtype)};
  std::array<Owned, 2> sums = {ring.both(DType::f32), ring.both(DType::f32)};
  Owned part = ring.both(DType::f32);
  const bool in_place = p.dq.dtype == DType::f32;
  Owned dq_sums = in_place ? Owned() : ctx.activation(p.q.shape, DType::f32);
  const Tensor dq = in_place ? p.dq : *dq_sums;
  copy(ctx, p.k, ring.keys(*kv[0]));
  copy(ctx, p.v, ring.values(*kv[0]));
  Event summed{};
  for (int t = 0; t < ring.ranks(); t++) {
    const Tensor here = *kv[size_t(t % 2)], home = *sums[size_t(t % 2)];
    Event arrived;
    if (!ring.last(t)) arrived = ring.pass(here, *kv[size_t(1 - t % 2)]);
    const auto b = ring.block(t);
    const Tensor own = t == 0 ? home : *part;
    if (b) {
      if (t > 0) ctx.k.run(ZeroArgs{.y = own}, ctx.compute);  // dq is added to, and so are dk and dv
      ctx.k.run(AttentionBackwardArgs{.q = q_part(p.q, *b),
                                      .k = k_part(ring.keys(here), *b),
                                      .v = k_part(ring.values(here), *b),
                                      .o = q_part(p.o, *b),
                                      .lse = lse_part(p.lse, *b),
                                      .dout = q_part(p.dout, *b),
                                      .dq = q_part(dq, *b),
                                      .dk = k_part(ring.keys(own), *b),
                                      .dv = k_part(ring.values(own), *b),
                                      .scale = p.scale,
                                      .causal = b->causal,
                                      .offset = b->offset,
                                      .first = ring.first(t, *b),
                                      .accumulate = t > 0,
                                      .dropout = dropout_of(ring, p.dropout, t, *b)},
                ctx.compute);
    }
    if (t > 0) {
      wait(ctx, summed);
      if (b) ctx.k.run(AddArgs{.a = home, .b = *part, .y = home}, ctx.compute);
    }
    summed = ring.pass(home, *sums[size_t(1 - t % 2)]);
    if (!ring.last(t)) wait(ctx, arrived);
  }
  wait(ctx, summed);
  const Tensor home = *sums[size_t(ring.ranks() % 2)];
  copy(ctx, ring.keys(home), p.dk);
  copy(ctx, ring.values(home), p.dv);
  if (!in_place) copy(ctx, dq, p.dq);
}

// ---- Ulysses ----

// Rows of `heads` heads side by side, [B, S, heads, D] -> [B, P, S/P, heads/P D] of some order of P and S/P.
struct Exchange {
  Ctx& ctx;
  int64_t ranks, batch, rows;  // rows = S / P

  Exchange(Ctx& c, const Tensor& q)
      : ctx(c), ranks(c.groups.cp.comm->size()), batch(q.shape[0]), rows(q.shape[1]) {}

  // Of this rank's rows, `n` columns from `first` on of the share of the heads that each rank gets: heads lie
  // side by side, or those columns are of one.
  Tensor by_heads(const Tensor& t, int64_t first, int64_t n) const {
    Tensor v(t.data + first * size_of(t.dtype), {batch, ranks, rows, n}, t.dtype);
    v.stride = {t.stride[0], t.shape[2] / ranks * t.stride[2], t.stride[1], 1};
    return v;
  }
  // Between the share's columns in t and those from `at` on in a buffer of such shares: run(share, buffer)
  // for all heads at once where they lie side by side, else one by one.
  template <class Run>
  int64_t each_share(const Tensor& t, const Tensor& buffer, int64_t width, int64_t at, const Run& run) const {
    const int64_t heads = t.shape[2] / ranks, dim = t.shape[3];
    const int64_t together = t.stride[2] == dim ? heads : 1;
    for (int64_t h = 0; h < heads; h += together)
      run(by_heads(t, h * t.stride[2], together * dim), columns(buffer, width, at + h * dim, together * dim));
    return at + heads * dim;
  }
  // Columns [first, first + n) of a buffer of rows of W elements, one part for each rank.
  Tensor columns(const Tensor& buffer, int64_t width, int64_t first, int64_t n) const {
    return buffer.view({batch, ranks, rows, width}).narrow(3, first, n);
  }
  // The same columns as heads of whole sequences [B, S, heads, D].
  Tensor sequences(const Tensor& buffer, int64_t width, int64_t first, int64_t heads, int64_t dim) const {
    Tensor v = buffer.view({batch, ranks * rows, width}).narrow(2, first, heads * dim);
    v.shape = {batch, ranks * rows, heads, dim};
    v.stride = {ranks * rows * width, width, dim, 1};
    return v;
  }
  // Of every sequence: part p of `send` to rank p, and part p of `recv` from it.
  void run(const Tensor& send, const Tensor& recv) const {
    const int64_t n = send.numel() / batch;
    const std::vector<int64_t> counts(size_t(ranks), rows);
    const Tensor from = send.view({batch, n}), to = recv.view({batch, n});
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t b = 0; b < batch; b++)
      ctx.groups.cp.comm->all_to_all({.send = from.narrow(0, b, 1).view({ranks * rows, n / (ranks * rows)}),
                                      .recv = to.narrow(0, b, 1).view({ranks * rows, n / (ranks * rows)}),
                                      .send_rows = counts,
                                      .recv_rows = counts},
                                     ctx.compute);
    if (ctx.groups.waited_s)
      *ctx.groups.waited_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  // Tensors of this rank's rows, side by side, as heads of whole sequences; and back.
  template <class... T>
  void to_sequences(const Tensor& recv, int64_t width, const T&... t) const {
    Owned send = ctx.activation({batch * ranks * rows * width}, ctx.dtype);
    int64_t at = 0;
    auto put = [&](const Tensor& own, const Tensor& share) { copy(ctx, own, share); };
    ((at = each_share(t, *send, width, at, put)), ...);
    run(*send, recv);
  }
  template <class... T>
  void to_rows(const Tensor& whole, int64_t width, const T&... t) const {
    Owned recv = ctx.activation({batch * ranks * rows * width}, ctx.dtype);
    run(whole, *recv);
    int64_t at = 0;
    auto take = [&](const Tensor& own, const Tensor& share) { copy(ctx, share, own); };
    ((at = each_share(t, *recv, width, at, take)), ...);
  }
};

// Kept for the backward pass: rows of (H D + KV (D + DV))/P elements of q, k, v, and of H/P DV of o.
struct UlyssesKept {
  const Exchange& e;
  int64_t heads, kv_heads, dim, value_dim, qkv_width, o_width, tokens;
  UlyssesKept(const Exchange& exchange, const Tensor& q, const Tensor& k, const Tensor& v)
      : e(exchange),
        heads(q.shape[2] / e.ranks),
        kv_heads(k.shape[2] / e.ranks),
        dim(q.shape[3]),
        value_dim(v.shape[3]),
        qkv_width((heads + kv_heads) * dim + kv_heads * value_dim),
        o_width(heads * value_dim),
        tokens(e.batch * e.ranks * e.rows) {}
  Tensor qkv(const Tensor& kept) const { return kept.narrow(0, 0, tokens * qkv_width); }
  Tensor o(const Tensor& kept) const { return kept.narrow(0, tokens * qkv_width, tokens * o_width); }
  // Heads of whole sequences, of a buffer of q, k, v (or of their gradients), and of one like o.
  Tensor q_of(const Tensor& qkv) const { return e.sequences(qkv, qkv_width, 0, heads, dim); }
  Tensor k_of(const Tensor& qkv) const { return e.sequences(qkv, qkv_width, heads * dim, kv_heads, dim); }
  Tensor v_of(const Tensor& qkv) const {
    return e.sequences(qkv, qkv_width, (heads + kv_heads) * dim, kv_heads, value_dim);
  }
  Tensor o_of(const Tensor& o) const { return e.sequences(o, o_width, 0, heads, value_dim); }
};

// This rank's heads of all that a sequence is numbered with.
DropoutMask dropout_of(const Ctx& ctx, const UlyssesKept& z, const Exchange& e, const DropoutMask& all) {
  DropoutMask m = all;
  const int64_t seq = e.ranks * e.rows;
  if (m) m.first += ctx.groups.cp.comm->rank() * z.heads * seq * seq;
  return m;
}

Owned ulysses_attend(Ctx& ctx, const AttentionArgs& p) {
  const Exchange e(ctx, p.q);
  const UlyssesKept z(e, p.q, p.k, p.v);
  Owned kept = ctx.activation({z.tokens * (z.qkv_width + z.o_width)}, ctx.dtype);
  const Tensor qkv = z.qkv(*kept), o = z.o(*kept);
  e.to_sequences(qkv, z.qkv_width, p.q, p.k, p.v);
  ctx.k.run(AttentionArgs{.q = z.q_of(qkv),
                          .k = z.k_of(qkv),
                          .v = z.v_of(qkv),
                          .o = z.o_of(o),
                          .lse = p.lse.view({e.batch, z.heads, e.ranks * e.rows}),
                          .scale = p.scale,
                          .first = ctx.batch.documents,
                          .dropout = dropout_of(ctx, z, e, p.dropout)},
            ctx.compute);
  e.to_rows(o, z.o_width, p.o);
  return kept;
}

void ulysses_backward(Ctx& ctx, const AttentionBackwardArgs& p, const Tensor& kept) {
  const Exchange e(ctx, p.q);
  const UlyssesKept z(e, p.q, p.k, p.v);
  const Tensor qkv = z.qkv(kept), o = z.o(kept);
  Owned dout = ctx.activation({z.tokens * z.o_width}, ctx.dtype);
  e.to_sequences(*dout, z.o_width, p.dout);
  Owned dqkv = ctx.activation({z.tokens * z.qkv_width}, ctx.dtype);
  ctx.k.run(AttentionBackwardArgs{.q = z.q_of(qkv),
                                  .k = z.k_of(qkv),
                                  .v = z.v_of(qkv),
                                  .o = z.o_of(o),
                                  .lse = p.lse.view({e.batch, z.heads, e.ranks * e.rows}),
                                  .dout = z.o_of(*dout),
                                  .dq = z.q_of(*dqkv),
                                  .dk = z.k_of(*dqkv),
                                  .dv = z.v_of(*dqkv),
                                  .scale = p.scale,
                                  .first = ctx.batch.documents,
                                  .dropout = dropout_of(ctx, z, e, p.dropout)},
            ctx.compute);
  dout.reset();
  e.to_rows(*dqkv, z.qkv_width, p.dq, p.dk, p.dv);
}

}  // namespace

Owned attend(Ctx& ctx, const AttentionArgs& p) {
  if (!ctx.groups.cp.comm) {
    AttentionArgs alone = p;
    alone.first = ctx.batch.documents;
    ctx.k.run(alone, ctx.compute);
    return {};
  }
  if (ctx.groups.cp.ulysses) return ulysses_attend(ctx, p);
  ring_attend(ctx, p);
  return {};
}

void attend_backward(Ctx& ctx, const AttentionBackwardArgs& p, const Tensor& kept) {
  if (!ctx.groups.cp.comm) {
    AttentionBackwardArgs alone = p;
    alone.first = ctx.batch.documents;
    return ctx.k.run(alone, ctx.compute);
  }
  if (ctx.groups.cp.ulysses) return ulysses_backward(ctx, p, kept);
  ring_backward(ctx, p);
}

// Ring: k and v take P - 1 hops in each pass, their gradients P in f32. Ulysses: of q, k, v and o, and of
// their gradients, all but a rank's own share goes to others.
ContextBytes context_bytes(bool ulysses, int ranks, int64_t tokens, int64_t heads, int64_t kv_heads,
                           int64_t head_dim, int64_t value_dim, DType type) {
  const int64_t kv = tokens * kv_heads * (head_dim + value_dim);
  if (!ulysses) return {.p2p = 2 * (ranks - 1) * kv * size_of(type) + ranks * kv * size_of(DType::f32)};
  const int64_t columns = (heads + kv_heads) * (head_dim + value_dim);  // of q and k, v and o
  return {.all_to_all = 2 * tokens * columns / ranks * (ranks - 1) * size_of(type)};
}

}  // namespace trireme
