// FlashAttention backward (2307.08691 section 3.1.2, algorithm 2), scores recomputed from the logsumexp L.
//
//   D = rowsum(dO o O);  P_ij = e^(scale Q_i K_j^T - L_i);  dP_ij = dO_i V_j^T;  dS = P o (dP - D)
//   dV_j += P^T dO_i;  dQ_i += scale dS K_j;  dK_j += scale dS^T Q_i          (outer j, inner i)
//
// q, o, dout, dq [B,S,H,D]; k, v, dk, dv [B,S,KV,D]; sums f32 (f64). P and dS are rounded to the element type
// before the products that take them; dq, dk, dv once, at the end (scale is applied there). A (sequence, kv
// head) is one thread's: it goes through the heads that share k, v in order, key blocks in order, and dQ of a
// head waits in f32 (f64) scratch between key blocks, so no bit depends on the thread count. Causal as in the
// forward pass. Scratch per thread: the tile, O(block); D and dQ of one head, and dK, dV where heads share:
// O(S D).
#include <cstring>

#include "device/cpu/attention.h"

namespace trireme::cpu::attention {
namespace {

template <class Acc>
class Backward {
 public:
  Backward(const AttentionBackwardArgs& p, const Tiles<Acc>& tiles, std::byte* scratch)
      : p_(p), t_(tiles), g_(p, blocks(p)), group_(g_.heads / g_.kv_heads) {
    Carver carve(scratch);
    auto tile_bytes = [&](int64_t elements) { return elements / t_.group * t_.unit; };
    int64_t q_tile = tile_bytes(g_.bq_pad * g_.depth), dout_tile = tile_bytes(g_.bq_pad * g_.v_depth);
    int64_t k_tile = tile_bytes(g_.bk_pad * g_.depth), v_tile = tile_bytes(g_.bk_pad * g_.v_depth);
    int64_t score_tile = tile_bytes(g_.bq_pad * g_.bk_pad);
    for (std::byte** tile : {&q_rows_, &q_summed_}) *tile = carve.bytes(q_tile);
    for (std::byte** tile : {&dout_rows_, &dout_summed_}) *tile = carve.bytes(dout_tile);
    for (std::byte** tile : {&k_columns_, &k_summed_}) *tile = carve.bytes(k_tile);
    v_columns_ = carve.bytes(v_tile);
    for (std::byte** tile : {&p_pairs_, &ds_pairs_}) *tile = carve.bytes(score_tile);
    ds_rows_ = t_.group > 1 ? carve.bytes(tile_bytes(kStrip * g_.bk_pad)) : nullptr;
    for (Acc** tile : {&s_, &dp_}) *tile = carve.template take<Acc>(kStrip * g_.bk_pad);
    dk_ = carve.template take<Acc>(g_.bk_pad * g_.depth);
    dv_ = carve.template take<Acc>(g_.bk_pad * g_.v_depth);
    if (p.dropout) keep_bits_ = carve.template take<uint16_t>(kStrip * g_.bk_pad / kLane);
    for (Acc** tile : {&lse_, &delta_}) *tile = carve.template take<Acc>(g_.bq_pad);
    large_delta_ = carve.template take<Acc>(g_.seq);
    large_dq_ = carve.template take<Acc>(g_.q_blocks * g_.bq_pad * g_.depth);
    if (group_ > 1) {
      large_dk_ = carve.template take<Acc>(g_.keys * g_.depth);
      large_dv_ = carve.template take<Acc>(g_.keys * g_.v_depth);
    }
    bytes_ = carve.used();
  }

  int64_t bytes() const { return bytes_; }
  int64_t units() const { return g_.batch * g_.kv_heads; }
  const TileTraffic& count() const { return count_; }

  // Units [begin, end): their heads, numbered over all sequences, in order.
  void run(int64_t begin, int64_t end) {
    for (int64_t head = begin * group_; head < end * group_; head++) {
      b_ = head / g_.heads, h_ = head % g_.heads;
      next_head_ = head + 1 < end * group_ ? head + 1 : -1;
      row_dots();
      if (parts()) std::fill(large_dq_, large_dq_ + g_.q_blocks * g_.bq_pad * g_.depth, Acc(0));
      for (int64_t k0 = 0; k0 < g_.keys; k0 += g_.bk) key_block(k0, std::min(g_.bk, g_.keys - k0));
      if (parts())
        for (int64_t i = 0; i < g_.q_blocks; i++)
          store(p_.dq, large_dq_ + i * g_.bq_pad * g_.depth, Acc(p_.scale),
                g_.rows(p_.dq, b_, h_, i * g_.bq, std::min(g_.bq, g_.seq - i * g_.bq)));
    }
  }

 private:
  // dQ of rows that see none of a block, or are added to: zero first, stored last.
  bool parts() const { return p_.accumulate || g_.gaps(); }
  void store(const Tensor& to, const Acc* sums, Acc factor, const Rows& rows) {
    const int64_t depth = round_up(rows.dim, kLane);
    if (to.dtype == p_.q.dtype && !p_.accumulate) return t_.store(sums, depth, factor, nullptr, rows);
    store_sums<Acc>(sums, depth, factor, nullptr, p_.accumulate, rows);
    if (p_.accumulate) count_.loads += rows.rows * rows.dim;
  }

  void row_dots() {
    t_.row_dots(g_.rows(p_.o, b_, h_, 0, g_.seq), g_.rows(p_.dout, b_, h_, 0, g_.seq), large_delta_);
    count_.loads += 2 * g_.seq * g_.v_dim, count_.row_stores += g_.seq;
  }

  // What is needed after this key block: more keys, or what the next head begins with.
  void look_ahead(int64_t k0, int64_t kn) {
    int64_t first = std::min(g_.first_row(k0) / g_.bq * g_.bq, g_.seq);
    ahead_.start(2 * g_.panels(first, g_.seq - first, k0, kn));
    if (h_ % group_ == group_ - 1)
      for (const Tensor* t : {&p_.dk, &p_.dv})
        ahead_.want(g_.rows(*t, b_, h_ / group_, k0, kn), size_of(t->dtype));
    int64_t b = b_, h = h_, next = k0 + kn, rows = std::min(g_.bq, g_.seq);
    if (next == g_.keys) {
      if (next_head_ < 0) return;
      b = next_head_ / g_.heads, h = next_head_ % g_.heads, next = 0;
      const int64_t dots = std::min<int64_t>(512, g_.seq);  // rows of o and dout go through row_dots first
      for (const Tensor* t : {&p_.o, &p_.dout}) ahead_.want(g_.rows(*t, b, h, 0, dots), t_.element);
      ahead_.want(g_.rows(p_.q, b, h, 0, rows), t_.element);
    }
    rows = std::min(g_.bk, g_.keys - next);
    for (const Tensor* t : {&p_.k, &p_.v}) ahead_.want(g_.rows(*t, b, h / group_, next, rows), t_.element);
  }

  void key_block(int64_t k0, int64_t kn) {
    int64_t kn_pad = round_up(kn, kLane), kv = h_ / group_;
    const int64_t both = kn * (g_.dim + g_.v_dim);  // elements of the block's keys and values
    Rows k = g_.rows(p_.k, b_, kv, k0, kn), v = g_.rows(p_.v, b_, kv, k0, kn);
    t_.pack_columns(k, kn_pad, g_.depth, k_columns_);
    t_.pack_summed(k, kn_pad, g_.depth, k_summed_);
    t_.pack_columns(v, kn_pad, g_.v_depth, v_columns_);
    count_.loads += both;
    if (h_ % group_ == 0) {
      std::fill(dk_, dk_ + kn_pad * g_.depth, Acc(0));
      std::fill(dv_, dv_ + kn_pad * g_.v_depth, Acc(0));
    } else {
      std::copy(large_dk_ + k0 * g_.depth, large_dk_ + (k0 + kn) * g_.depth, dk_);
      std::copy(large_dv_ + k0 * g_.v_depth, large_dv_ + (k0 + kn) * g_.v_depth, dv_);
      count_.loads += both;
    }
    look_ahead(k0, kn);
    for (int64_t i = g_.first_row(k0) / g_.bq; i < g_.q_blocks && g_.first_row(k0) < g_.seq; i++)
      if (g_.begin(b_, i * g_.bq, std::min(g_.bq, g_.seq - i * g_.bq)) < k0 + kn) query_block(i, k0, kn);
    if (h_ % group_ == group_ - 1) {
      store(p_.dk, dk_, Acc(p_.scale), g_.rows(p_.dk, b_, kv, k0, kn));
      store(p_.dv, dv_, p_.dropout ? Acc(p_.dropout.scale()) : Acc(1), g_.rows(p_.dv, b_, kv, k0, kn));
    } else {
      std::copy(dk_, dk_ + kn * g_.depth, large_dk_ + k0 * g_.depth);
      std::copy(dv_, dv_ + kn * g_.v_depth, large_dv_ + k0 * g_.v_depth);
    }
    count_.stores += both;
  }

  // Rows behind the sequence's end are zeros with an L that makes their P exactly 0.
  void load_queries(int64_t q0, int64_t rows, int64_t padded) {
    Rows q = g_.rows(p_.q, b_, h_, q0, rows), dout = g_.rows(p_.dout, b_, h_, q0, rows);
    queries_ = left_rows(t_, q, padded, g_.depth, q_rows_);
    t_.pack_summed(q, padded, g_.depth, q_summed_);
    douts_ = left_rows(t_, dout, padded, g_.v_depth, dout_rows_);
    t_.pack_summed(dout, padded, g_.v_depth, dout_summed_);
    count_.loads += rows * (g_.dim + g_.v_dim);
    const Acc* lse = p_.lse.as<Acc>() + b_ * p_.lse.stride[0] + h_ * p_.lse.stride[1] + q0;
    for (int64_t r = 0; r < rows; r++)
      lse_[r] = lse[r] == -std::numeric_limits<Acc>::infinity() ? Acc(kSeesNothing) : lse[r];
    std::fill(lse_ + rows, lse_ + padded, Acc(kSeesNothing));
    std::copy(large_delta_ + q0, large_delta_ + q0 + rows, delta_);
    std::fill(delta_ + rows, delta_ + padded, Acc(0));
    count_.row_loads += 2 * rows;
  }

  void query_block(int64_t i, int64_t k0, int64_t kn) {
    int64_t q0 = i * g_.bq, rows = std::min(g_.bq, g_.seq - q0), padded = round_up(rows, kStrip);
    Acc* dq = large_dq_ + i * g_.bq_pad * g_.depth;
    load_queries(q0, rows, padded);
    bool last = !parts() && k0 + kn >= g_.end(q0, rows);  // key block that these rows see
    soon_.start(2 * g_.panels(q0, rows, k0, kn));
    if (last) soon_.want(g_.rows(p_.dq, b_, h_, q0, rows), size_of(p_.dq.dtype));
    for (const Tensor* t : {&p_.q, &p_.dout})
      soon_.want(g_.rows(*t, b_, h_, q0 + rows, std::min(g_.bq, g_.seq - q0 - rows)), t_.element);
    if (k0 > 0) count_.loads += rows * g_.dim;  // dQ, by the strips' products
    for (int64_t r = 0; r < padded; r += kStrip) {
      int64_t n = g_.columns(b_, q0 + r, k0, kn);
      if (n > 0)
        strip(r, q0 + r, k0, kn, n, dq + r * g_.depth);
      else if (g_.first)
        skip_strip(r, kn);
    }
    sum_over_queries(q0, padded, k0, kn);
    if (last) store(p_.dq, dq, Acc(p_.scale), g_.rows(p_.dq, b_, h_, q0, rows));
    count_.stores += rows * g_.dim;
  }

  // A strip whose documents begin behind the key block: the sums over queries find zeros.
  void skip_strip(int64_t r, int64_t kn) {
    const int64_t bytes = round_up(kn, kLane) * t_.unit;
    for (int64_t pair = 0; pair < kStrip / t_.group; pair++) {
      const int64_t at = (r / t_.group + pair) * g_.bk_pad * t_.unit;
      std::fill_n(p_pairs_ + at, bytes, std::byte(0));
      std::fill_n(ds_pairs_ + at, bytes, std::byte(0));
    }
  }

  // P, dS of one strip, and its dQ.
  void strip(int64_t r, int64_t row, int64_t k0, int64_t kn, int64_t n, Acc* dq) {
    int64_t kn_pad = round_up(kn, kLane);
    auto scores = [&](const Left& rows, const std::byte* keys, int64_t depth, Acc* out) {
      const int64_t units = depth / t_.group;
      for (int64_t c = 0; c < n; c += kPanel) {
        ahead_.step();
        soon_.step();
        t_.product({.a = rows.data + r * rows.row * t_.unit,
                    .a_row = rows.row,
                    .a_step = 1,
                    .b = keys + c * units * t_.unit,
                    .b_depth = units,
                    .b_cols = kn_pad - c,
                    .c = out + c,
                    .ldc = g_.bk_pad,
                    .m = kStrip,
                    .n = std::min(kPanel, n - c),
                    .k = units});
      }
    };
    scores(queries_, k_columns_, g_.depth, s_);
    scores(douts_, v_columns_, g_.v_depth, dp_);
    g_.mask_documents(b_, row, k0, n, Acc(p_.scale), s_);
    std::byte* ds_pairs = ds_pairs_ + r / t_.group * g_.bk_pad * t_.unit;
    std::byte* p_pairs = p_pairs_ + r / t_.group * g_.bk_pad * t_.unit;
    KeepTile keep;
    auto drop = [&](Acc* x, Acc factor) {
      t_.drop({.x = x, .ld = g_.bk_pad, .n = n, .bits = keep_bits_, .words = keep.words, .factor = factor});
    };
    if (p_.dropout) {
      keep = g_.keep_tile(p_.dropout, b_, h_, row, k0, n);
      keep_bits(p_.dropout, keep, keep_bits_);
      drop(dp_, Acc(p_.dropout.scale()));
    }
    t_.gradient({.s = s_,
                 .dp = dp_,
                 .ds_rows = ds_rows_,
                 .p_pairs = p_pairs,
                 .ds_pairs = ds_pairs,
                 .ld = g_.bk_pad,
                 .n = n,
                 .mask = g_.mask(row, k0, kn),
                 .scale = Acc(p_.scale),
                 .lse = lse_ + r,
                 .delta = delta_ + r});
    if (p_.dropout) drop(reinterpret_cast<Acc*>(p_pairs), Acc(1));
    t_.product({.a = ds_rows_ ? ds_rows_ : ds_pairs,
                .a_row = g_.bk_pad / t_.group,
                .a_step = 1,
                .b = k_summed_,
                .b_depth = kn_pad / t_.group,
                .b_cols = g_.depth,
                .c = dq,
                .ldc = g_.depth,
                .m = kStrip,
                .n = g_.depth,
                .k = n / t_.group,
                .add = k0 > 0 || parts()});
  }

  // dV += P^T dO and dK += dS^T Q over the block's strips that see the keys: on the diagonal, groups of kLane
  // keys begin at the first strip that sees one of them (its columns were written up to a multiple of kLane).
  void sum_over_queries(int64_t q0, int64_t padded, int64_t k0, int64_t kn) {
    int64_t kn_pad = round_up(kn, kLane);
    auto first_strip = [&](int64_t c) {
      return std::max<int64_t>(0, g_.first_row(k0 + c) - q0) / kStrip * kStrip;
    };
    auto seen = [&](int64_t c) { return g_.first_row(k0 + c) < std::min(q0 + padded, g_.seq); };
    for (int64_t c = 0, end; c < kn_pad && seen(c); c = end) {
      int64_t first = first_strip(c);
      for (end = c + kLane; end < kn_pad && seen(end) && first_strip(end) == first;) end += kLane;
      int64_t at = first / t_.group;
      Product<Acc> sum{.a = p_pairs_ + (at * g_.bk_pad + c) * t_.unit,
                       .a_row = 1,
                       .a_step = g_.bk_pad,
                       .b = dout_summed_,
                       .b_depth = padded / t_.group,
                       .b_cols = g_.v_depth,
                       .b_first = at,
                       .c = dv_ + c * g_.v_depth,
                       .ldc = g_.v_depth,
                       .m = end - c,
                       .n = g_.v_depth,
                       .k = padded / t_.group - at,
                       .add = true};
      t_.product(sum);
      sum.a = ds_pairs_ + (at * g_.bk_pad + c) * t_.unit, sum.b = q_summed_, sum.c = dk_ + c * g_.depth;
      sum.b_cols = sum.ldc = sum.n = g_.depth;
      t_.product(sum);
    }
  }

  const AttentionBackwardArgs& p_;
  const Tiles<Acc>& t_;
  Geometry g_;
  int64_t group_;                                              // heads that share k, v
  int64_t b_ = 0, h_ = 0, next_head_ = -1;                     // sequence and head in work; the head after it
  std::byte *q_rows_, *q_summed_, *dout_rows_, *dout_summed_;  // [bq][D], of dout DV
  Left queries_, douts_;                                       // of the q block in work
  std::byte *k_columns_, *k_summed_, *v_columns_;              // [bk][D], of v DV
  std::byte *p_pairs_, *ds_pairs_, *ds_rows_;                  // [bq][bk], [bq][bk], [16][bk]
  Acc *s_, *dp_, *dk_, *dv_, *lse_, *delta_;                   // [16][bk] x 2, [bk][D], [bk][DV], [bq] x 2
  uint16_t* keep_bits_ = nullptr;                              // [16][bk / 16], with dropout
  Acc *large_delta_, *large_dq_;                               // of one head: [S], [S][D]
  Acc *large_dk_ = nullptr, *large_dv_ = nullptr;              // [S][D], [S][DV], where heads share
  int64_t bytes_ = 0;
  TileTraffic count_;
  Ahead ahead_, soon_;  // spread over a key block; over a query block
};

}  // namespace

template <class Acc>
int64_t scratch_bytes(const AttentionBackwardArgs& p, const Tiles<Acc>& tiles, const Context& ctx) {
  Backward<Acc> f(p, tiles, nullptr);
  return f.bytes() * std::min<int64_t>(ctx.threads, f.units());
}
template <class Acc>
void backward(const AttentionBackwardArgs& p, const Tiles<Acc>& tiles, const Tensor& scratch,
              const Context& ctx) {
  Backward<Acc> sizes(p, tiles, nullptr);
  parallel_for(ctx, sizes.units(), 1, [&](int64_t begin, int64_t end, int thread) {
    const Working<Acc> working(tiles);
    Backward<Acc> f(p, tiles, scratch.data + thread * sizes.bytes());
    f.run(begin, end);
    add_traffic(p.traffic, f.count());
  });
}

template int64_t scratch_bytes(const AttentionBackwardArgs&, const Tiles<float>&, const Context&);
template int64_t scratch_bytes(const AttentionBackwardArgs&, const Tiles<double>&, const Context&);
template void backward(const AttentionBackwardArgs&, const Tiles<float>&, const Tensor&, const Context&);
template void backward(const AttentionBackwardArgs&, const Tiles<double>&, const Tensor&, const Context&);

}  // namespace trireme::cpu::attention
