// check() of every op: presence, element types, shapes and strides against the contract of ops.h. Those of
// experts are in ops_check_experts.cc.
#include <initializer_list>

#include "device/ops.h"
#include "device/ops_checker.h"
#include "mesh/shard.h"

namespace trireme {

std::string described(const Tensor& t) {
  if (!t && t.shape.rank == 0) return "absent";
  std::string s = fmt::format("{} {} strides [", name_of(t.dtype), to_string(t.shape));
  for (int i = 0; i < t.shape.rank; i++) s += fmt::format("{}{}", i ? ", " : "", t.stride[size_t(i)]);
  return s + "]";
}

void Checker::fail(std::string_view name, const Tensor& t, std::string_view must) const {
  invariant_failed(fmt::format("{}: operand '{}' is {}, but must be {}", op_, name, described(t), must),
                   __FILE__, __LINE__);
}

namespace {

// Of operands a and b and what they sum over; the type of both.
template <class Args>
DType check_factors(const Checker& c, const Args& p, bool trans_a) {
  DType type = c.compute_type("a", p.a);
  c.matrix("a", p.a, type);
  c.matrix("b", p.b, type);
  const int64_t k = p.a.shape[trans_a ? 0 : 1];
  c.that(k > 0, "a", p.a, "of at least one column to sum over (K > 0)");
  if (p.b.shape[p.trans_b ? 1 : 0] != k) [[unlikely]]
    c.fail("b", p.b,
           fmt::format("of {} {} to match 'a' {}", k, p.trans_b ? "columns" : "rows", described(p.a)));
  return type;
}

}  // namespace

void check(const MatmulArgs& p) {
  Checker c(p.kName);
  const DType type = check_factors(c, p, p.trans_a);
  const int64_t m = p.a.shape[p.trans_a ? 1 : 0], n = p.b.shape[p.trans_b ? 0 : 1];
  c.type("c", p.c, type, DType::f32);
  c.matrix("c", p.c, m, n, p.c.dtype);
  if (p.bias) c.vector("bias", p.bias, n, type);
  if (p.residual) c.matrix("residual", p.residual, m, n, p.c.dtype);
}

void check(const MatmulGeluArgs& p) {
  Checker c(p.kName);
  const DType type = check_factors(c, p, false);
  const int64_t m = p.a.shape[0], n = p.b.shape[p.trans_b ? 0 : 1];
  c.matrix("c", p.c, m, n, type);
  c.matrix("y", p.y, m, n, type);
  if (p.bias) c.vector("bias", p.bias, n, type);
}
void check(const MatmulGeluBackwardArgs& p) {
  Checker c(p.kName);
  const DType type = check_factors(c, p, false);
  const int64_t m = p.a.shape[0], n = p.b.shape[p.trans_b ? 0 : 1];
  c.matrix("x", p.x, m, n, type);
  c.matrix("c", p.c, m, n, type);
}

void check(const EmbeddingArgs& p) {
  Checker c(p.kName);
  DType type = c.compute_type("table", p.table);
  c.matrix("table", p.table, type);
  c.vector("ids", p.ids, p.ids.numel(), DType::i32);
  c.matrix("y", p.y, p.ids.numel(), p.table.shape[1], type);
  c.that(p.first >= 0 && (p.vocab > 0 || p.first == 0), "table", p.table,
         "a part of a table of `vocab` rows");
}
void check(const EmbeddingBackwardArgs& p) {
  Checker c(p.kName);
  DType type = c.compute_type("dy", p.dy);
  c.vector("ids", p.ids, p.ids.numel(), DType::i32);
  c.type("dtable", p.dtable, type, DType::f32);
  c.matrix("dtable", p.dtable, p.dtable.dtype);
  c.matrix("dy", p.dy, p.ids.numel(), p.dtable.shape[1], type);
  c.that(p.first >= 0 && (p.vocab > 0 || p.first == 0), "dtable", p.dtable,
         "a part of a table of `vocab` rows");
}

void check(const LayerNormArgs& p) {
  Checker c(p.kName);
  DType type = c.compute_type("x", p.x);
  c.matrix("x", p.x, type);
  int64_t n = p.x.shape[0], cols = p.x.shape[1];
  c.vector("weight", p.weight, cols, type);
  c.vector("bias", p.bias, cols, type);
  c.matrix("y", p.y, n, cols, type);
  c.vector("mean", p.mean, n, DType::f32);
  c.vector("rstd", p.rstd, n, DType::f32);
}
void check(const LayerNormBackwardArgs& p) {
  Checker c(p.kName);
  DType type = c.compute_type("x", p.x);
  c.matrix("x", p.x, type);
  int64_t n = p.x.shape[0], cols = p.x.shape[1];
  c.matrix("dy", p.dy, n, cols, type);
  c.vector("weight", p.weight, cols, type);
  c.vector("mean", p.mean, n, DType::f32);
  c.vector("rstd", p.rstd, n, DType::f32);
  if (p.add) c.matrix("add", p.add, n, cols, type);
  c.matrix("dx", p.dx, n, cols, type);
  c.vector("dweight", p.dweight, cols, DType::f32);
  c.vector("dbias", p.dbias, cols, DType::f32);
}
namespace {
// x [N, C] or [N, heads, C]: its columns; and the other operands of its shape.
int64_t check_head_rows(const Checker& c, const Tensor& x, DType type) {
  c.that(x.shape.rank == 2 || x.shape.rank == 3, "x", x, "[N, C] or [N, heads, C]");
  c.type("x", x, type);
  return x.shape[x.shape.rank - 1];
}
void check_heads(const Checker& c, std::string_view name, const Tensor& t, const Tensor& x) {
  c.like(name, t, "x", x);
  c.unit_columns(name, t);
  if (t.shape.rank == 3)
    c.that(t.shape[1] <= 1 || t.stride[1] == t.shape[2], name, t, "of heads that lie one behind the other");
}
}  // namespace

void check(const RmsNormArgs& p) {
  Checker c(p.kName);
  DType type = c.compute_type("x", p.x);
  int64_t cols = check_head_rows(c, p.x, type), n = cols > 0 ? p.x.numel() / cols : p.x.shape[0];
  check_heads(c, "x", p.x, p.x);
  check_heads(c, "y", p.y, p.x);
  c.vector("weight", p.weight, cols, type);
  c.vector("rstd", p.rstd, n, DType::f32);
}
void check(const RmsNormBackwardArgs& p) {
  Checker c(p.kName);
  DType type = c.compute_type("x", p.x);
  int64_t cols = check_head_rows(c, p.x, type), n = cols > 0 ? p.x.numel() / cols : p.x.shape[0];
  check_heads(c, "x", p.x, p.x);
  check_heads(c, "dy", p.dy, p.x);
  c.vector("weight", p.weight, cols, type);
  c.vector("rstd", p.rstd, n, DType::f32);
  if (p.add) check_heads(c, "add", p.add, p.x);
  check_heads(c, "dx", p.dx, p.x);
  c.vector("dweight", p.dweight, cols, DType::f32);
}

void check(const RopeArgs& p) {
  Checker c(p.kName);
  c.compute_type("x", p.x);
  c.that(p.x.shape.rank == 3, "x", p.x, "[N, heads, D]");
  int64_t d = p.x.shape[2];
  c.unit_columns("x", p.x);
  c.that(d % 2 == 0, "x", p.x, "of an even head size");
  c.matrix("cos", p.cos, DType::f32);
  c.matrix("cos", p.cos, p.cos.shape[0], d / 2, DType::f32);
  c.matrix("sin", p.sin, p.cos.shape[0], d / 2, DType::f32);
  c.vector("positions", p.positions, p.x.shape[0], DType::i32);
}

void check(const GeluArgs& p) {
  Checker c(p.kName);
  c.matrix("x", p.x, c.compute_type("x", p.x));
  c.matrix("y", p.y, p.x.shape[0], p.x.shape[1], p.x.dtype);
}
void check(const GeluBackwardArgs& p) {
  Checker c(p.kName);
  c.matrix("x", p.x, c.compute_type("x", p.x));
  c.matrix("dy", p.dy, p.x.shape[0], p.x.shape[1], p.x.dtype);
  c.matrix("dx", p.dx, p.x.shape[0], p.x.shape[1], p.x.dtype);
}
void check(const SwigluArgs& p) {
  Checker c(p.kName);
  DType type = c.compute_type("gate", p.gate);
  c.matrix("gate", p.gate, type);
  c.matrix("up", p.up, p.gate.shape[0], p.gate.shape[1], type);
  c.matrix("y", p.y, p.gate.shape[0], p.gate.shape[1], type);
}
void check(const SwigluBackwardArgs& p) {
  Checker c(p.kName);
  DType type = c.compute_type("gate", p.gate);
  c.matrix("gate", p.gate, type);
  int64_t n = p.gate.shape[0], f = p.gate.shape[1];
  c.matrix("up", p.up, n, f, type);
  c.matrix("dy", p.dy, n, f, type);
  c.matrix("dgate", p.dgate, n, f, type);
  c.matrix("dup", p.dup, n, f, type);
}

namespace {
DType sums_of(DType type) {
  return type == DType::f64 ? DType::f64 : DType::f32;
}
// v, of T [rows, DV] like k but for the width of a row, which is returned.
int64_t value_columns(const Checker& c, std::string_view name, const Tensor& v,
                      std::initializer_list<int64_t> rows, DType type) {
  c.type(name, v, type);
  const int64_t* n = rows.begin();
  c.that(v.shape.rank == 4 && v.shape[3] > 0, name, v, "[B, S, KV, DV]");
  c.shape(name, v, {n[0], n[1], n[2], v.shape[3]});
  c.unit_columns(name, v);
  return v.shape[3];
}
// T, or unrounded: the type of the sums.
void check_rounded_or_sums(const Checker& c, std::string_view name, const Tensor& t, const Shape& shape,
                           DType type, DType sums, bool accumulate) {
  if (accumulate)
    c.type(name, t, sums);
  else
    c.type(name, t, type, sums);
  c.shape(name, t, shape);
  c.unit_columns(name, t);
}

// Do n rows from 0 on lie in [0, seq)? Runs ascend, so the last one says.
bool places_within(const PositionRuns& runs, int64_t n, int64_t seq) {
  return runs.first >= 0 && runs.begin >= 0 && runs.step >= 0 && (n == 0 || runs.at(n - 1) < seq);
}

// q [B,S,H,D], k [B,Sk,KV,D], v [B,Sk,KV,DV], o [B,S,H,DV], lse [B,H,S], first [B,S]: the same for both
// passes.
template <class A>
void check_attention(const Checker& c, const A& p) {
  DType type = c.compute_type("q", p.q, true);
  c.that(p.q.shape.rank == 4, "q", p.q, "[B, S, H, D]");
  c.type("k", p.k, type);
  c.that(p.k.shape.rank == 4, "k", p.k, "[B, S, KV, D]");
  int64_t b = p.q.shape[0], s = p.q.shape[1], h = p.q.shape[2], d = p.q.shape[3], kv = p.k.shape[2];
  int64_t keys = p.k.shape[1];
  c.shape("k", p.k, {b, keys, kv, d});
  c.that(kv > 0 && h % kv == 0, "q", p.q, "of a number of heads that is a multiple of k's");
  value_columns(c, "v", p.v, {b, keys, kv}, type);
  c.unit_columns("q", p.q);
  c.unit_columns("k", p.k);
  c.type("lse", p.lse, sums_of(type));
  c.shape("lse", p.lse, {b, h, s});
  c.unit_columns("lse", p.lse);
  if (present(p.first)) {
    c.vector("first", p.first, b * s, DType::i32);
    c.that(p.scale != 0, "q", p.q, "scaled by other than 0 where `first` is given");
  }
  c.that(p.dropout.rate >= 0 && p.dropout.rate < 1, "q", p.q, "dropped at a rate of at least 0 and below 1");
  const bool part = keys != s || p.offset != 0 || p.accumulate;
  const DropoutMask& m = p.dropout;
  c.that(!(part && m) || m.seq > 0, "k", p.k,
         "whole where there is dropout, unless that says which part of whole sequences");
  c.that(!m || m.seq == 0 || (places_within(m.rows, s, m.seq) && places_within(m.keys, keys, m.seq)), "q",
         p.q, "of rows and keys within dropout's sequences");
}
// Of o: q's, with v's columns.
Shape o_shape(const Tensor& q, const Tensor& v) {
  return {q.shape[0], q.shape[1], q.shape[2], v.shape[3]};
}
}  // namespace

void check(const AttentionArgs& p) {
  Checker c(p.kName);
  check_attention(c, p);
  check_rounded_or_sums(c, "o", p.o, o_shape(p.q, p.v), p.q.dtype, sums_of(p.q.dtype), p.accumulate);
  const bool whole = p.k.shape[1] == p.q.shape[1] && p.offset == 0 && !p.accumulate &&
                     p.o.dtype == p.q.dtype && !present(p.first);
  c.that(whole || p.version == FlashVersion::fa2, "k", p.k, "whole and rounded at once in version fa1");
}
void check(const AttentionBackwardArgs& p) {
  Checker c(p.kName);
  check_attention(c, p);
  c.type("o", p.o, p.q.dtype);
  c.shape("o", p.o, o_shape(p.q, p.v));
  c.unit_columns("o", p.o);
  c.like("dout", p.dout, "o", p.o);
  c.unit_columns("dout", p.dout);
  const DType sums = sums_of(p.q.dtype);
  check_rounded_or_sums(c, "dq", p.dq, p.q.shape, p.q.dtype, sums, p.accumulate);
  check_rounded_or_sums(c, "dk", p.dk, p.k.shape, p.q.dtype, sums, p.accumulate);
  check_rounded_or_sums(c, "dv", p.dv, p.v.shape, p.q.dtype, sums, p.accumulate);
  c.that(p.dk.dtype == p.dv.dtype && p.dq.dtype == p.dv.dtype, "dv", p.dv, "of the type of dq and dk");
}

namespace {
// k [B, Cap, KV, D] and v [B, Cap, KV, DV] of a cache, and positions [B, S] of new rows of D columns; returns
// DV.
int64_t check_cache(const Checker& c, const Tensor& k, const Tensor& v, const Tensor& positions,
                    const Shape& rows, DType type, std::string_view k_name, std::string_view v_name) {
  c.type(k_name, k, type);
  c.that(k.shape.rank == 4, k_name, k, "[B, Cap, KV, D]");
  c.shape(k_name, k, {rows[0], k.shape[1], k.shape[2], rows[3]});
  c.unit_columns(k_name, k);
  c.vector("positions", positions, rows[0] * rows[1], DType::i32);
  return value_columns(c, v_name, v, {rows[0], k.shape[1], k.shape[2]}, type);
}
}  // namespace

void check(const CacheAppendArgs& p) {
  Checker c(p.kName);
  DType type = c.compute_type("k", p.k);
  c.that(p.k.shape.rank == 4, "k", p.k, "[B, S, KV, D]");
  c.unit_columns("k", p.k);
  const int64_t dv = value_columns(c, "v", p.v, {p.k.shape[0], p.k.shape[1], p.k.shape[2]}, type);
  const int64_t cached =
      check_cache(c, p.k_cache, p.v_cache, p.positions, p.k.shape, type, "k_cache", "v_cache");
  c.that(cached == dv, "v_cache", p.v_cache, "of rows as wide as v's");
  c.that(p.k_cache.shape[2] == p.k.shape[2], "k_cache", p.k_cache, "of as many heads as k");
}
void check(const CachedAttentionArgs& p) {
  Checker c(p.kName);
  DType type = c.compute_type("q", p.q);
  c.that(p.q.shape.rank == 4, "q", p.q, "[B, S, H, D]");
  const int64_t dv = check_cache(c, p.k, p.v, p.positions, p.q.shape, type, "k", "v");
  int64_t heads = p.q.shape[2], kv = p.k.shape[2];
  c.that(kv > 0 && heads % kv == 0, "q", p.q, "of a number of heads that is a multiple of k's");
  c.type("o", p.o, type);
  c.shape("o", p.o, {p.q.shape[0], p.q.shape[1], heads, dv});
  c.unit_columns("q", p.q);
  c.unit_columns("o", p.o);
}

namespace {
// heads [N, H, A + B] beside own [N, H, A] and shared [N, B].
void check_concat(const Checker& c, std::string_view all_name, const Tensor& all, std::string_view own_name,
                  const Tensor& own, std::string_view shared_name, const Tensor& shared) {
  const DType type = c.compute_type(own_name, own);
  c.that(own.shape.rank == 3, own_name, own, "[N, H, A]");
  c.unit_columns(own_name, own);
  c.matrix(shared_name, shared, type);
  c.that(shared.shape[0] == own.shape[0], shared_name, shared, "of as many rows");
  c.type(all_name, all, type);
  c.shape(all_name, all, {own.shape[0], own.shape[1], own.shape[2] + shared.shape[1]});
  c.unit_columns(all_name, all);
}
}  // namespace

void check(const ConcatSharedArgs& p) {
  check_concat(Checker(p.kName), "y", p.y, "a", p.a, "b", p.b);
}
void check(const ConcatSharedBackwardArgs& p) {
  check_concat(Checker(p.kName), "dy", p.dy, "da", p.da, "db", p.db);
}

void check(const CrossEntropyArgs& p) {
  Checker c(p.kName);
  c.matrix("logits", p.logits, c.compute_type("logits", p.logits));
  c.that(p.vocab > 0 && p.vocab <= p.logits.shape[1], "logits", p.logits,
         "of at least `vocab` columns, and vocab at least 1");
  c.vector("targets", p.targets, p.logits.shape[0], DType::i32);
  c.vector("loss", p.loss, p.logits.shape[0], DType::f32);
}

void check(const SoftmaxStatsArgs& p) {
  Checker c(p.kName);
  c.matrix("logits", p.logits, c.compute_type("logits", p.logits));
  c.that(p.vocab > 0 && p.vocab <= p.logits.shape[1] && p.first >= 0, "logits", p.logits,
         "of at least `vocab` columns, and vocab at least 1");
  c.vector("targets", p.targets, p.logits.shape[0], DType::i32);
  c.vector("stats", p.stats, 3 * p.logits.shape[0], DType::f32);
}
void check(const SplitCrossEntropyArgs& p) {
  Checker c(p.kName);
  c.matrix("logits", p.logits, c.compute_type("logits", p.logits));
  c.that(p.vocab > 0 && p.vocab <= p.logits.shape[1] && p.first >= 0, "logits", p.logits,
         "of at least `vocab` columns, and vocab at least 1");
  c.vector("targets", p.targets, p.logits.shape[0], DType::i32);
  c.that(p.stats.shape.rank == 3 && p.stats.shape[0] > 0 && p.stats.shape[1] == 3 &&
             p.stats.shape[2] == p.logits.shape[0] && p.stats.contiguous(),
         "stats", p.stats, "[ranks, 3, rows]");
  c.type("stats", p.stats, DType::f32);
  c.vector("loss", p.loss, p.logits.shape[0], DType::f32);
}

void check(const AddArgs& p) {
  Checker c(p.kName);
  c.vector("a", p.a, p.a.numel(), c.compute_type("a", p.a));
  c.vector("b", p.b, p.a.numel(), c.compute_type("b", p.b));
  c.vector("y", p.y, p.a.numel(), c.compute_type("y", p.y));
}
void check(const DropoutArgs& p) {
  Checker c(p.kName);
  DType type = c.compute_type("x", p.x);
  c.vector("x", p.x, p.x.numel(), type);
  if (p.residual) c.vector("residual", p.residual, p.x.numel(), type);
  c.vector("y", p.y, p.x.numel(), type);
  const DropoutMask& m = p.mask;
  c.that(m.rate > 0 && m.rate < 1, "x", p.x, "dropped at a rate above 0 and below 1");
  if (m.seq == 0) return;
  PositionRuns of_sequence = m.rows;
  of_sequence.first = 0;
  c.that(p.x.shape.rank == 2 && m.part > 0 && m.rows.first >= 0 && places_within(of_sequence, m.part, m.seq),
         "x", p.x, "[N, C], of rows within dropout's sequences");
}
void check(const CastArgs& p) {
  Checker c(p.kName);
  c.that(present(p.src), "src", p.src, "present");
  if (p.src.contiguous() && p.dst.contiguous()) {
    c.vector("src", p.src, p.src.numel(), p.src.dtype);
    c.vector("dst", p.dst, p.src.numel(), p.dst.dtype);
  } else {
    c.that(present(p.dst), "dst", p.dst, "present");
    c.shape("dst", p.dst, p.src.shape);
    c.unit_columns("src", p.src);
    c.unit_columns("dst", p.dst);
  }
  if (p.src.dtype != p.dst.dtype) c.compute_type("src", p.src), c.compute_type("dst", p.dst);
}
void check(const ZeroArgs& p) {
  Checker(p.kName).vector("y", p.y, p.y.numel(), p.y.dtype);
}
void check(const ColumnSumArgs& p) {
  Checker c(p.kName);
  DType type = c.compute_type("dy", p.dy);
  c.matrix("dy", p.dy, type);
  c.type("db", p.db, type, DType::f32);
  c.vector("db", p.db, p.dy.shape[1], p.db.dtype);
}

void check(const QuantiseArgs& p) {
  Checker c(p.kName);
  DType type = c.compute_type("x", p.x);
  c.matrix("x", p.x, type);
  c.that(p.x.numel() > 0, "x", p.x, "of at least one element");
  c.matrix("codes", p.codes, p.x.shape[0], p.x.shape[1], DType::u8);
  c.that(p.codes.contiguous(), "codes", p.codes, "contiguous");
  c.that(p.blocks.rows >= 0 && p.blocks.cols >= 0, "scale", p.scale,
         "of blocks of 0 or more rows and columns");
  const Shape scales = p.blocks.scales(p.x.shape[0], p.x.shape[1]);
  c.matrix("scale", p.scale, scales[0], scales[1], DType::f32);
  c.that(p.scale.contiguous(), "scale", p.scale, "contiguous");
  if (p.amax) c.vector("amax", p.amax, 1, DType::f32);
  if (p.amax) c.that(scales.numel() == 1, "amax", p.amax, "absent where there are several blocks");
  if (p.seen) c.vector("seen", p.seen, 1, DType::f32);
}

void check(const Fp8MatmulArgs& p) {
  Checker c(p.kName);
  auto operand = [&](std::string_view name, const Tensor& codes, std::string_view scale_name,
                     const Tensor& scale, const Fp8Blocks& blocks) {
    c.matrix(name, codes, DType::u8);
    c.that(codes.contiguous(), name, codes, "contiguous");
    const Shape scales = blocks.scales(codes.shape[0], codes.shape[1]);
    c.matrix(scale_name, scale, scales[0], scales[1], DType::f32);
    c.that(scale.contiguous(), scale_name, scale, "contiguous");
  };
  operand("a", p.a, "scale_a", p.scale_a, p.blocks_a);
  operand("b", p.b, "scale_b", p.scale_b, p.blocks_b);
  const int64_t m = p.a.shape[p.trans_a ? 1 : 0], k = p.a.shape[p.trans_a ? 0 : 1],
                n = p.b.shape[p.trans_b ? 0 : 1];
  c.that(k > 0, "a", p.a, "of at least one column to sum over (K > 0)");
  c.that(p.b.shape[p.trans_b ? 1 : 0] == k, "b", p.b, "as deep as 'a'");
  const DType type = c.compute_type("c", p.c);
  c.matrix("c", p.c, m, n, type);
  if (p.bias) {
    const DType of_bias = c.compute_type("bias", p.bias);
    c.that(of_bias == type || type == DType::f32, "bias", p.bias, "of c's type");
    c.vector("bias", p.bias, n, of_bias);
  }
  if (p.residual) c.matrix("residual", p.residual, m, n, type);
}

void check(const AdamWArgs& p) {
  Checker c(p.kName);
  int64_t n = p.master.numel();
  c.vector("master", p.master, n, DType::f32);
  c.type("exp_avg", p.exp_avg, DType::f32, DType::bf16);
  c.vector("exp_avg", p.exp_avg, n, p.exp_avg.dtype);
  c.vector("exp_avg_sq", p.exp_avg_sq, n, p.exp_avg.dtype);
  require(p.row >= 1 && p.first >= 0, "adamw: elements of a box have places in it");
  c.type("grad", p.grad, DType::f32, DType::bf16);
  c.vector("grad", p.grad, n, p.grad.dtype);
  if (p.weight) {
    c.type("weight", p.weight, DType::bf16, DType::f16);
    c.vector("weight", p.weight, n, p.weight.dtype);
  }
}
void check(const MuonMomentumArgs& p) {
  Checker c(p.kName);
  int64_t n = p.momentum.numel();
  c.vector("momentum", p.momentum, n, DType::f32);
  c.type("grad", p.grad, DType::f32, DType::bf16);
  c.vector("grad", p.grad, n, p.grad.dtype);
  c.type("update", p.update, DType::f32, DType::bf16);
  c.vector("update", p.update, n, p.update.dtype);
}
void check(const MuonApplyArgs& p) {
  Checker c(p.kName);
  int64_t n = p.master.numel();
  c.vector("master", p.master, n, DType::f32);
  c.type("update", p.update, DType::f32, DType::bf16);
  c.vector("update", p.update, n, p.update.dtype);
  if (p.weight) {
    c.type("weight", p.weight, DType::bf16, DType::f16);
    c.vector("weight", p.weight, n, p.weight.dtype);
  }
}
void check(const ScaledSumArgs& p) {
  Checker c(p.kName);
  DType type = c.compute_type("a", p.a);
  c.vector("a", p.a, p.a.numel(), type);
  if (p.b) c.vector("b", p.b, p.a.numel(), type);
  c.vector("y", p.y, p.a.numel(), type);
}
void check(const OrthogonaliseArgs& p) {
  Checker c(p.kName);
  require(p.count >= 1 && p.count <= OrthogonaliseArgs::kMost, "orthogonalise: the number of matrices");
  int64_t n = 0;
  for (int i = 0; i < p.count; i++) n += p.sides[size_t(i)].numel();
  c.vector("x", p.x, n, DType::f32);
}
void check(const SquareSumsArgs& p) {
  Checker c(p.kName);
  c.vector("x", p.x, p.x.numel(), c.compute_type("x", p.x));
  c.vector("sums", p.sums, (p.x.numel() + kFlatBlock - 1) / kFlatBlock, DType::f64);
}
void check(const CountNonfiniteArgs& p) {
  Checker c(p.kName);
  c.compute_type("x", p.x, true);
  c.unit_columns("x", p.x);
  c.vector("count", p.count, 1, DType::i64);
}

}  // namespace trireme
