// FlashAttention forward, versions 1 and 2.
//
//   S_ij = Q_i K_j^T;  m' = max(m, rowmax scale S);  P = e^(scale S - m');  l' = e^(m - m') l + rowsum P
//   FA2 (outer i, inner j):  O <- e^(m - m') O + P V_j;  in the end O / l and L = m + log l
//   FA1 (outer j, inner i):  O <- (l e^(m - m') O + P V_j) / l', with O, l, m in large memory between blocks
// (FA1 writes P~ = e^(S - m~) with the block's own maximum and a factor e^(m~ - m') in front of P~ V; the
// exponents are added here, which is the same number.)
//
// q, o [B,S,H,D]; k, v [B,S,KV,D]; sums f32 (f64). P is rounded to the element type before P V, l sums it
// unrounded. Dropout zeroes elements of P after l has summed them, and O is scaled at its store. Causal: key
// blocks above the diagonal are skipped; inside a block strips above it too, and a strip's columns behind its
// last row's key. Rows are independent and their sums run in ascending key order: no bit depends on the
// thread count or on block_q. A part that accumulates begins with what memory holds instead of nothing: m =
// L, l = 1, O as it is. Scratch per thread: the tile, O(block), and for FA1 one head's O, l, m, O(S D).
#include <cmath>
#include <cstring>
#include <limits>

#include "device/cpu/attention.h"

namespace trireme::cpu::attention {
namespace {

template <class Acc>
class Forward {
 public:
  Forward(const AttentionArgs& p, const Tiles<Acc>& tiles, std::byte* scratch)
      : p_(p), t_(tiles), g_(p, blocks(p)) {
    Carver carve(scratch);
    q_ = carve.bytes(g_.bq_pad * g_.depth / t_.group * t_.unit);
    k_ = carve.bytes(g_.bk_pad * g_.depth / t_.group * t_.unit);
    v_ = carve.bytes(g_.bk_pad * g_.v_depth / t_.group * t_.unit);
    prob_ = carve.bytes(kStrip * g_.bk_pad / t_.group * t_.unit);
    s_ = carve.template take<Acc>(kStrip * g_.bk_pad);
    o_ = carve.template take<Acc>(g_.bq_pad * g_.v_depth);
    m_ = carve.template take<Acc>(g_.bq_pad);
    l_ = carve.template take<Acc>(g_.bq_pad);
    keep_ = carve.template take<Acc>(kStrip);
    if (p.dropout) keep_bits_ = carve.template take<uint16_t>(kStrip * g_.bk_pad / kLane);
    if (fa1()) {
      int64_t rows = g_.q_blocks * g_.bq_pad;
      large_o_ = carve.template take<Acc>(rows * g_.v_depth);
      large_m_ = carve.template take<Acc>(rows);
      large_l_ = carve.template take<Acc>(rows);
    }
    bytes_ = carve.used();
  }

  int64_t bytes() const { return bytes_; }
  // FA1 hands out whole heads, FA2 blocks of q too.
  int64_t units() const { return g_.batch * g_.heads * (fa1() ? 1 : g_.q_blocks); }
  const TileTraffic& count() const { return count_; }

  // Units [begin, end), in order.
  void run(int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; u++) {
      if (fa1()) {
        fa1_head(u / g_.heads, u % g_.heads);
      } else {
        Block next;
        if (u + 1 < end) next = block(u + 1);
        fa2_block(block(u), u + 1 < end ? &next : nullptr);
      }
    }
  }

 private:
  struct Block {
    int64_t b, h, i;
  };
  // First, last, second, last but one ... block of a head: neighbours cost as much as any others, so cuts are
  // fair.
  Block block(int64_t u) const {
    int64_t i = u % g_.q_blocks, head = u / g_.q_blocks;
    return {head / g_.heads, head % g_.heads, i % 2 ? g_.q_blocks - 1 - i / 2 : i / 2};
  }
  int64_t kv(int64_t h) const { return h * g_.kv_heads / g_.heads; }

  bool fa1() const { return p_.version == FlashVersion::fa1; }
  int64_t rows_of(int64_t i) const { return std::min(g_.bq, g_.seq - i * g_.bq); }
  Acc* lse(int64_t b, int64_t h, int64_t row) const {
    return p_.lse.as<Acc>() + b * p_.lse.stride[0] + h * p_.lse.stride[1] + row;
  }

  void load_queries(int64_t b, int64_t h, int64_t q0, int64_t rows) {
    queries_ = left_rows(t_, g_.rows(p_.q, b, h, q0, rows), round_up(rows, kStrip), g_.depth, q_);
    count_.loads += rows * g_.dim;
  }
  void load_keys(int64_t b, int64_t h, int64_t k0, int64_t kn) {
    t_.pack_columns(g_.rows(p_.k, b, kv(h), k0, kn), round_up(kn, kLane), g_.depth, k_);
    t_.pack_summed(g_.rows(p_.v, b, kv(h), k0, kn), round_up(kn, kLane), g_.v_depth, v_);
    count_.loads += kn * (g_.dim + g_.v_dim);
  }

  // All strips of the q block against the key block. `first`: no O yet.
  void attend(int64_t q0, int64_t rows, int64_t k0, int64_t kn, bool first) {
    for (int64_t r = 0; r < rows; r += kStrip) {
      int64_t n = g_.columns(b_, q0 + r, k0, kn);
      if (n > 0) attend_strip(r, q0 + r, k0, kn, n, first);
    }
  }
  void attend_strip(int64_t r, int64_t row, int64_t k0, int64_t kn, int64_t n, bool first) {
    int64_t units = g_.depth / t_.group, kn_pad = round_up(kn, kLane);
    ahead_.step();
    t_.product({.a = queries_.data + r * queries_.row * t_.unit,
                .a_row = queries_.row,
                .a_step = 1,
                .b = k_,
                .b_depth = units,
                .b_cols = kn_pad,
                .c = s_,
                .ldc = g_.bk_pad,
                .m = kStrip,
                .n = n,
                .k = units});
    g_.mask_documents(b_, row, k0, n, Acc(p_.scale), s_);
    Acc *m = m_ + r, *l = l_ + r, *o = o_ + r * g_.v_depth, old_l[kStrip];
    if (fa1()) std::copy(l, l + kStrip, old_l);
    t_.softmax({.s = s_,
                .p = prob_,
                .ld = g_.bk_pad,
                .n = n,
                .mask = g_.mask(row, k0, kn),
                .scale = Acc(p_.scale),
                .m = m,
                .l = l,
                .keep = keep_});
    if (p_.dropout) drop(row, k0, n);
    if (fa1())  // O was divided by the old l
      for (int64_t i = 0; i < kStrip; i++) keep_[i] *= old_l[i];
    ahead_.step();
    t_.product({.a = prob_,
                .a_row = g_.bk_pad / t_.group,
                .a_step = 1,
                .b = v_,
                .b_depth = kn_pad / t_.group,
                .b_cols = g_.v_depth,
                .c = o,
                .ldc = g_.v_depth,
                .m = kStrip,
                .n = g_.v_depth,
                .k = n / t_.group,
                .add = !first,
                .keep = keep_});
    if (fa1())
      for (int64_t i = 0; i < kStrip; i++)
        for (int64_t d = 0; d < g_.v_depth; d++) o[i * g_.v_depth + d] /= l[i];
  }

  // Of the strip's P.
  void drop(int64_t row, int64_t k0, int64_t n) {
    KeepTile keep = g_.keep_tile(p_.dropout, b_, h_, row, k0, n);
    keep_bits(p_.dropout, keep, keep_bits_);
    t_.drop({.x = reinterpret_cast<Acc*>(prob_),
             .ld = g_.bk_pad,
             .n = n,
             .bits = keep_bits_,
             .words = keep.words});
  }

  void store(int64_t b, int64_t h, int64_t q0, int64_t rows, const Acc* factors) {
    count_.stores += rows * g_.v_dim;
    if (p_.o.dtype != p_.q.dtype)
      return store_sums(o_, g_.v_depth, p_.dropout ? Acc(p_.dropout.scale()) : Acc(1), factors, false,
                        g_.rows(p_.o, b, h, q0, rows));
    t_.store(o_, g_.v_depth, p_.dropout ? Acc(p_.dropout.scale()) : Acc(1), factors,
             g_.rows(p_.o, b, h, q0, rows));
  }
  void store_lse(int64_t b, int64_t h, int64_t q0, int64_t rows) {
    Acc* out = lse(b, h, q0);
    for (int64_t r = 0; r < rows; r++)
      out[r] = l_[r] == 0 ? -std::numeric_limits<Acc>::infinity() : m_[r] + std::log(l_[r]);
    count_.row_stores += rows;
  }

  // What the key block after this one will load: more keys, or the next block of q and its first keys.
  void look_ahead(const Block& now, int64_t next_k0, int64_t end, const Block* next) {
    ahead_.start(2 * (round_up(rows_of(now.i), kStrip) / kStrip));
    auto keys = [&](const Block& at, int64_t k0, int64_t kn) {
      ahead_.want(g_.rows(p_.k, at.b, kv(at.h), k0, kn), t_.element);
      ahead_.want(g_.rows(p_.v, at.b, kv(at.h), k0, kn), t_.element);
    };
    if (next_k0 < end) {
      keys(now, next_k0, std::min(g_.bk, end - next_k0));
      return;
    }
    ahead_.want(g_.rows(p_.o, now.b, now.h, now.i * g_.bq, rows_of(now.i)), size_of(p_.o.dtype));
    if (!next) return;
    ahead_.want(g_.rows(p_.q, next->b, next->h, next->i * g_.bq, rows_of(next->i)), t_.element);
    keys(*next, 0, std::min(g_.bk, g_.keys));
  }

  // O, l, m of rows that have seen nothing, or what another part of the attention left of them. Only where a
  // strip may meet no key in its first block must O be zero: elsewhere the first product writes it.
  void start(int64_t b, int64_t h, int64_t q0, int64_t rows) {
    const bool from_nothing = !p_.accumulate && !g_.gaps();
    std::fill(m_, m_ + g_.bq_pad, from_nothing ? -std::numeric_limits<Acc>::infinity() : Acc(kNoScore));
    std::fill(l_, l_ + g_.bq_pad, Acc(0));
    if (from_nothing) return;
    std::fill(o_, o_ + g_.bq_pad * g_.v_depth, Acc(0));
    if (!p_.accumulate) return;
    const Rows old = g_.rows(p_.o, b, h, q0, rows);
    const Acc kept = p_.dropout ? Acc(1 - p_.dropout.rate) : Acc(1);  // its scale comes at the store
    const Acc* old_lse = lse(b, h, q0);
    for (int64_t r = 0; r < rows; r++) {
      if (old_lse[r] == -std::numeric_limits<Acc>::infinity()) continue;
      m_[r] = old_lse[r], l_[r] = 1;
      const Acc* o = reinterpret_cast<const Acc*>(old.data) + r * old.stride;
      for (int64_t d = 0; d < g_.v_dim; d++) o_[r * g_.v_depth + d] = kept * o[d];
    }
    count_.loads += rows * g_.v_dim, count_.row_loads += rows;
  }

  void fa2_block(const Block& at, const Block* next) {
    auto [b, h, i] = at;
    b_ = b, h_ = h;
    int64_t q0 = i * g_.bq, rows = rows_of(i), end = g_.end(q0, rows);
    load_queries(b, h, q0, rows);
    start(b, h, q0, rows);
    const bool zeroed = p_.accumulate || g_.gaps();
    for (int64_t k0 = g_.begin(b, q0, rows) / g_.bk * g_.bk; k0 < end; k0 += g_.bk) {
      int64_t kn = std::min(g_.bk, end - k0);
      load_keys(b, h, k0, kn);
      look_ahead(at, k0 + kn, end, next);
      attend(q0, rows, k0, kn, k0 == 0 && !zeroed);
    }
    store_lse(b, h, q0, rows);
    for (int64_t r = 0; r < rows; r++) l_[r] = l_[r] == 0 ? Acc(0) : 1 / l_[r];
    store(b, h, q0, rows, l_);
  }

  void fa1_head(int64_t b, int64_t h) {
    b_ = b, h_ = h;
    int64_t all = g_.q_blocks * g_.bq_pad;  // line 2 of algorithm 1: filled in large memory, not moved
    std::fill(large_o_, large_o_ + all * g_.v_depth, Acc(0));
    std::fill(large_m_, large_m_ + all, -std::numeric_limits<Acc>::infinity());
    std::fill(large_l_, large_l_ + all, Acc(0));
    for (int64_t k0 = 0; k0 < g_.seq; k0 += g_.bk) {
      int64_t kn = std::min(g_.bk, g_.seq - k0);
      load_keys(b, h, k0, kn);
      for (int64_t i = g_.causal ? k0 / g_.bq : 0; i < g_.q_blocks; i++) fa1_block(b, h, i, k0, kn);
    }
  }
  void fa1_block(int64_t b, int64_t h, int64_t i, int64_t k0, int64_t kn) {
    int64_t q0 = i * g_.bq, rows = rows_of(i), pad = round_up(rows, kStrip), at = i * g_.bq_pad;
    load_queries(b, h, q0, rows);
    std::copy(large_o_ + at * g_.v_depth, large_o_ + (at + pad) * g_.v_depth, o_);
    std::copy(large_m_ + at, large_m_ + at + pad, m_);
    std::copy(large_l_ + at, large_l_ + at + pad, l_);
    count_.loads += rows * g_.v_dim, count_.row_loads += 2 * rows;
    attend(q0, rows, k0, kn, false);
    int64_t end = g_.causal ? q0 + rows : g_.seq;
    if (k0 + kn >= end) {  // the last key block that this q block sees
      store(b, h, q0, rows, nullptr);
      store_lse(b, h, q0, rows);
    } else {
      std::copy(o_, o_ + pad * g_.v_depth, large_o_ + at * g_.v_depth);
      count_.stores += rows * g_.v_dim;
    }
    std::copy(m_, m_ + pad, large_m_ + at);
    std::copy(l_, l_ + pad, large_l_ + at);
    count_.row_stores += 2 * rows;
  }

  const AttentionArgs& p_;
  const Tiles<Acc>& t_;
  Geometry g_;
  std::byte *q_, *k_, *v_, *prob_;  // [bq][D], K^T [D][bk], V [bk][DV], P [16][bk]
  Left queries_;                    // of the q block in work
  Acc *s_, *o_, *m_, *l_, *keep_;   // S [16][bk], O [bq][DV], [bq], [bq], [16]
  uint16_t* keep_bits_ = nullptr;   // [16][bk / 16], with dropout
  int64_t b_ = 0, h_ = 0;           // sequence and head in work
  Acc *large_o_ = nullptr, *large_m_ = nullptr, *large_l_ = nullptr;  // one head's, for FA1
  int64_t bytes_ = 0;
  TileTraffic count_;
  Ahead ahead_;
};

}  // namespace

template <class Acc>
int64_t scratch_bytes(const AttentionArgs& p, const Tiles<Acc>& tiles, const Context& ctx) {
  Forward<Acc> f(p, tiles, nullptr);
  return f.bytes() * std::min<int64_t>(ctx.threads, f.units());
}
template <class Acc>
void forward(const AttentionArgs& p, const Tiles<Acc>& tiles, const Tensor& scratch, const Context& ctx) {
  Forward<Acc> sizes(p, tiles, nullptr);
  parallel_for(ctx, sizes.units(), 1, [&](int64_t begin, int64_t end, int thread) {
    const Working<Acc> working(tiles);
    Forward<Acc> f(p, tiles, scratch.data + thread * sizes.bytes());
    f.run(begin, end);
    add_traffic(p.traffic, f.count());
  });
}

template int64_t scratch_bytes(const AttentionArgs&, const Tiles<float>&, const Context&);
template int64_t scratch_bytes(const AttentionArgs&, const Tiles<double>&, const Context&);
template void forward(const AttentionArgs&, const Tiles<float>&, const Tensor&, const Context&);
template void forward(const AttentionArgs&, const Tiles<double>&, const Tensor&, const Context&);

}  // namespace trireme::cpu::attention
