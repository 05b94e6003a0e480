// cost() and outputs() of every op.
//
// FLOPs: a multiply-add counts 2; exp, tanh, erf, sqrt and divisions count 1; the counts per element below
// are those of the plain formulas of ops.h, not of one kernel. Bytes: each operand once, updates both read
// and written; of an embedding table only the rows that are looked up, because a gather touches no others.
#include <algorithm>

#include "device/ops.h"
#include "mesh/context.h"

namespace trireme {
namespace {

int64_t bytes_of(const Tensor& t) {
  return t ? t.bytes() : 0;
}

template <class... T>
int64_t sum_bytes(const T&... t) {
  return (bytes_of(t) + ... + 0);
}
template <class... T>
Outputs list(const T&... t) {
  Outputs out;
  auto put = [&](const Tensor& x) {
    if (x) out.t[out.n++] = x;
  };
  (put(t), ...);
  return out;
}
double count(const Tensor& t) {
  return double(t.numel());
}

}  // namespace

// 2 M N K, and one add per element of c for each epilogue.
Cost cost(const MatmulArgs& p) {
  double mn = count(p.c), k = double(p.a.shape[p.trans_a ? 0 : 1]);
  double epilogues = (p.bias ? 1 : 0) + (p.residual ? 1 : 0) + (p.accumulate ? 1 : 0);
  return {2 * mn * k + epilogues * mn,
          sum_bytes(p.a, p.b, p.bias, p.residual) + (p.accumulate ? p.c.bytes() : 0), p.c.bytes()};
}
Outputs outputs(const MatmulArgs& p) {
  return list(p.c);
}

// What the product and gelu cost; what gelu reads is still at hand, and its gradient's product was not
// stored.
Cost cost(const MatmulGeluArgs& p) {
  const Cost product =
      cost(MatmulArgs{.a = p.a, .b = p.b, .c = p.c, .trans_b = p.trans_b, .bias = p.bias, .residual = {}});
  const Cost gelu = cost(GeluArgs{.x = p.c, .y = p.y});
  return {product.flops + gelu.flops, product.bytes_read, product.bytes_written + gelu.bytes_written};
}
Outputs outputs(const MatmulGeluArgs& p) {
  return list(p.c, p.y);
}
Cost cost(const MatmulGeluBackwardArgs& p) {
  const Cost product =
      cost(MatmulArgs{.a = p.a, .b = p.b, .c = p.c, .trans_b = p.trans_b, .bias = {}, .residual = {}});
  const Cost gelu = cost(GeluBackwardArgs{.x = p.x, .dy = p.c, .dx = p.c});
  return {product.flops + gelu.flops, product.bytes_read + p.x.bytes(), product.bytes_written};
}
Outputs outputs(const MatmulGeluBackwardArgs& p) {
  return list(p.c);
}

Cost cost(const EmbeddingArgs& p) {
  int64_t gathered = p.y.bytes();
  return {p.accumulate ? count(p.y) : 0, p.ids.bytes() + gathered + (p.accumulate ? p.y.bytes() : 0),
          p.y.bytes()};
}
Outputs outputs(const EmbeddingArgs& p) {
  return list(p.y);
}

// Accumulating touches at most as many rows as there are ids; else the whole table is written.
Cost cost(const EmbeddingBackwardArgs& p) {
  int64_t rows = std::min(p.ids.numel(), p.dtable.shape[0]);
  int64_t touched = rows * p.dtable.shape[1] * size_of(p.dtable.dtype);
  return {count(p.dy), sum_bytes(p.ids, p.dy) + (p.accumulate ? touched : 0),
          p.accumulate ? touched : p.dtable.bytes()};
}
Outputs outputs(const EmbeddingBackwardArgs& p) {
  return list(p.dtable);
}

// Mean 1, variance 3, normalise 2, affine 2.
Cost cost(const LayerNormArgs& p) {
  return {8 * count(p.x), sum_bytes(p.x, p.weight, p.bias), sum_bytes(p.y, p.mean, p.rstd)};
}
Outputs outputs(const LayerNormArgs& p) {
  return list(p.y, p.mean, p.rstd);
}

// xhat 2, dy*w 1, two row sums 3, dx 4, dweight 2, dbias 1; the residual branch 1.
Cost cost(const LayerNormBackwardArgs& p) {
  return {(p.add ? 14 : 13) * count(p.x), sum_bytes(p.dy, p.x, p.weight, p.mean, p.rstd, p.add),
          sum_bytes(p.dx, p.dweight, p.dbias)};
}
Outputs outputs(const LayerNormBackwardArgs& p) {
  return list(p.dx, p.dweight, p.dbias);
}

// Sum of squares 2, normalise 1, weight 1.
Cost cost(const RmsNormArgs& p) {
  return {4 * count(p.x), sum_bytes(p.x, p.weight), sum_bytes(p.y, p.rstd)};
}
Outputs outputs(const RmsNormArgs& p) {
  return list(p.y, p.rstd);
}

// xhat 1, dy*w 1, row sum 2, dx 3, dweight 2; the residual branch 1.
Cost cost(const RmsNormBackwardArgs& p) {
  return {(p.add ? 10 : 9) * count(p.x), sum_bytes(p.dy, p.x, p.weight, p.rstd, p.add),
          sum_bytes(p.dx, p.dweight)};
}
Outputs outputs(const RmsNormBackwardArgs& p) {
  return list(p.dx, p.dweight);
}

// 4 products and 2 sums per pair; each row reads its own line of cos and sin.
Cost cost(const RopeArgs& p) {
  int64_t angles = 2 * p.x.shape[0] * (p.x.shape[2] / 2) * size_of(DType::f32);
  return {3 * count(p.x), sum_bytes(p.x, p.positions) + angles, p.x.bytes()};
}
Outputs outputs(const RopeArgs& p) {
  return list(p.x);
}

// tanh form: x(1 + a x^2)c 5, tanh 1, (1 + t) x/2 3. erf form: 1 + 1 + 3.
Cost cost(const GeluArgs& p) {
  return {(p.tanh_approx ? 9 : 5) * count(p.x), p.x.bytes(), p.y.bytes()};
}
Outputs outputs(const GeluArgs& p) {
  return list(p.y);
}

// tanh form: tanh 6, cdf part 2, density part 9, times dy 1. erf form: cdf 4, density 5, sum 1, times dy 1.
Cost cost(const GeluBackwardArgs& p) {
  return {(p.tanh_approx ? 18 : 11) * count(p.x), sum_bytes(p.x, p.dy), p.dx.bytes()};
}
Outputs outputs(const GeluBackwardArgs& p) {
  return list(p.dx);
}

// Sigmoid 4, two products.
Cost cost(const SwigluArgs& p) {
  return {6 * count(p.y), sum_bytes(p.gate, p.up), p.y.bytes()};
}
Outputs outputs(const SwigluArgs& p) {
  return list(p.y);
}

// Sigmoid 4, silu 1, dup 1, dgate 6.
Cost cost(const SwigluBackwardArgs& p) {
  return {12 * count(p.dy), sum_bytes(p.gate, p.up, p.dy), sum_bytes(p.dgate, p.dup)};
}
Outputs outputs(const SwigluBackwardArgs& p) {
  return list(p.dgate, p.dup);
}

namespace {
// Scores that are computed: S(S+1)/2 per head when causal, else S^2 (of a part: what its diagonal leaves, as
// if documents had no borders, which are data), each a product with rows of `columns` columns.
template <class A>
double attention_flops(const A& p, int64_t columns) {
  const Tensor& q = p.q;
  double b = double(q.shape[0]), h = double(q.shape[2]);
  int64_t rows = q.shape[1], keys = p.k.shape[1];
  return 2 * b * h * double(p.causal ? visible_pairs(rows, keys, p.offset) : rows * keys) * double(columns);
}
}  // namespace
Cost cost(const AttentionArgs& p) {
  int64_t written = sum_bytes(p.o, p.lse);
  return {attention_flops(p, p.q.shape[3] + p.v.shape[3]),
          sum_bytes(p.q, p.k, p.v, p.first) + (p.accumulate ? written : 0), written};
}
Outputs outputs(const AttentionArgs& p) {
  return list(p.o, p.lse);
}

// Five products instead of two: of rows of D columns the scores again, dq, dk; of DV dv, dp.
Cost cost(const AttentionBackwardArgs& p) {
  int64_t written = sum_bytes(p.dq, p.dk, p.dv);
  return {attention_flops(p, 3 * p.q.shape[3] + 2 * p.v.shape[3]),
          sum_bytes(p.q, p.k, p.v, p.o, p.lse, p.dout, p.first) + (p.accumulate ? written : 0), written};
}
Outputs outputs(const AttentionBackwardArgs& p) {
  return list(p.dq, p.dk, p.dv);
}

Cost cost(const CacheAppendArgs& p) {
  int64_t moved = sum_bytes(p.k, p.v);
  return {0, moved + p.positions.bytes(), moved};
}
Outputs outputs(const CacheAppendArgs& p) {
  return list(p.k_cache, p.v_cache);
}

// As if every row saw the whole cache: how much of it they see is data, which a cost knows nothing of.
Cost cost(const CachedAttentionArgs& p) {
  return {2 * (count(p.q) + count(p.o)) * double(p.k.shape[1]), sum_bytes(p.q, p.k, p.v, p.positions),
          p.o.bytes()};
}
Outputs outputs(const CachedAttentionArgs& p) {
  return list(p.o);
}

Cost cost(const ConcatSharedArgs& p) {
  return {0, sum_bytes(p.a, p.b), p.y.bytes()};
}
Outputs outputs(const ConcatSharedArgs& p) {
  return list(p.y);
}
Cost cost(const ConcatSharedBackwardArgs& p) {
  return {double(p.dy.shape[1]) * count(p.db), p.dy.bytes(), sum_bytes(p.da, p.db)};
}
Outputs outputs(const ConcatSharedBackwardArgs& p) {
  return list(p.da, p.db);
}

// Maximum 1, shift 1, exp 1, sum 1; gradient 2.
Cost cost(const CrossEntropyArgs& p) {
  double scores = double(p.logits.shape[0]) * double(p.vocab);
  return {(p.backward ? 6 : 4) * scores, sum_bytes(p.logits, p.targets),
          p.loss.bytes() + (p.backward ? p.logits.bytes() : 0)};
}
Outputs outputs(const CrossEntropyArgs& p) {
  return p.backward ? list(p.loss, p.logits) : list(p.loss);
}

// Largest, difference, exp and sum a column.
Cost cost(const SoftmaxStatsArgs& p) {
  return {4 * double(p.logits.shape[0]) * double(p.vocab), sum_bytes(p.logits, p.targets), p.stats.bytes()};
}
Outputs outputs(const SoftmaxStatsArgs& p) {
  return list(p.stats);
}
// Difference, exp and a factor a column.
Cost cost(const SplitCrossEntropyArgs& p) {
  double scores = p.backward ? double(p.logits.shape[0]) * double(p.vocab) : 0;
  return {3 * scores, sum_bytes(p.targets, p.stats) + (p.backward ? p.logits.bytes() : 0),
          p.loss.bytes() + (p.backward ? p.logits.bytes() : 0)};
}
Outputs outputs(const SplitCrossEntropyArgs& p) {
  return p.backward ? list(p.loss, p.logits) : list(p.loss);
}

Cost cost(const AddArgs& p) {
  return {count(p.y), sum_bytes(p.a, p.b), p.y.bytes()};
}
Outputs outputs(const AddArgs& p) {
  return list(p.y);
}

// A product, and a sum with the residual; drawing is no arithmetic on floats.
Cost cost(const DropoutArgs& p) {
  return {(p.residual ? 2 : 1) * count(p.x), sum_bytes(p.x, p.residual), p.y.bytes()};
}
Outputs outputs(const DropoutArgs& p) {
  return list(p.y);
}

Cost cost(const CastArgs& p) {
  return {0, p.src.bytes(), p.dst.bytes()};
}
Outputs outputs(const CastArgs& p) {
  return list(p.dst);
}

Cost cost(const ZeroArgs& p) {
  return {0, 0, p.y.bytes()};
}
Outputs outputs(const ZeroArgs& p) {
  return list(p.y);
}

Cost cost(const ColumnSumArgs& p) {
  return {count(p.dy), p.dy.bytes() + (p.accumulate ? p.db.bytes() : 0), p.db.bytes()};
}
Outputs outputs(const ColumnSumArgs& p) {
  return list(p.db);
}

// Maximum 1, shift 1, exp 1, sum 1, quotient 1; with a bias 1; each choice a weight 2. Comparisons are no
// arithmetic.
Cost cost(const RouteArgs& p) {
  return {(p.bias ? 6 : 5) * count(p.logits) + 2 * count(p.weights), sum_bytes(p.logits, p.bias),
          sum_bytes(p.ids, p.weights)};
}
Outputs outputs(const RouteArgs& p) {
  return list(p.ids, p.weights);
}

// The scores again 5, their gradient 4; with balance 3; each choice 5.
Cost cost(const RouteBackwardArgs& p) {
  return {(p.balance ? 12 : 9) * count(p.logits) + 5 * count(p.dweights),
          sum_bytes(p.logits, p.ids, p.dweights, p.balance), p.dlogits.bytes()};
}
Outputs outputs(const RouteBackwardArgs& p) {
  return list(p.dlogits);
}

// The scores again 5, their sum 1; the square of a logsumexp 2.
Cost cost(const RouteSharesArgs& p) {
  return {6 * count(p.logits) + 2 * double(p.logits.rows()), sum_bytes(p.logits, p.ids),
          sum_bytes(p.choices, p.shares, p.squares)};
}
Outputs outputs(const RouteSharesArgs& p) {
  return list(p.choices, p.shares, p.squares);
}

Cost cost(const RouteOrderArgs& p) {
  return {0, p.ids.bytes(), sum_bytes(p.offsets, p.place, p.source, p.load)};
}
Outputs outputs(const RouteOrderArgs& p) {
  return list(p.offsets, p.place, p.source, p.load);
}

// As if no choice were dropped: which are is data.
Cost cost(const PermuteRowsArgs& p) {
  return {0, p.y.bytes() + p.source.bytes(), p.y.bytes()};
}
Outputs outputs(const PermuteRowsArgs& p) {
  return list(p.y);
}

Cost cost(const CombineRowsArgs& p) {
  return {(p.weights ? 2 : 1) * count(p.x), sum_bytes(p.x, p.place, p.weights, p.add), p.y.bytes()};
}
Outputs outputs(const CombineRowsArgs& p) {
  return list(p.y);
}

Cost cost(const CombineRowsBackwardArgs& p) {
  return {3 * count(p.x), sum_bytes(p.dy, p.x, p.place, p.source, p.weights), sum_bytes(p.dx, p.dweights)};
}
Outputs outputs(const CombineRowsBackwardArgs& p) {
  return list(p.dx, p.dweights);
}

// As if every row were an expert's.
Cost cost(const GroupedMatmulArgs& p) {
  return {2 * count(p.y) * double(p.x.shape[1]), sum_bytes(p.x, p.w, p.offsets), p.y.bytes()};
}
Outputs outputs(const GroupedMatmulArgs& p) {
  return list(p.y);
}
Cost cost(const GroupedMatmulWeightArgs& p) {
  return {2 * count(p.dy) * double(p.x.shape[1]) + (p.accumulate ? count(p.dw) : 0),
          sum_bytes(p.dy, p.x, p.offsets) + (p.accumulate ? p.dw.bytes() : 0), p.dw.bytes()};
}
Outputs outputs(const GroupedMatmulWeightArgs& p) {
  return list(p.dw);
}

// The largest, and the scaling: one each.
Cost cost(const QuantiseArgs& p) {
  return {2 * count(p.x), sum_bytes(p.x, p.amax, p.seen), sum_bytes(p.codes, p.scale, p.seen)};
}
Outputs outputs(const QuantiseArgs& p) {
  return list(p.codes, p.scale, p.seen);
}

// As matmul's: hardware applies scales on the way.
Cost cost(const Fp8MatmulArgs& p) {
  const double mn = count(p.c), k = double(p.a.shape[p.trans_a ? 0 : 1]);
  const double epilogues = (p.bias ? 1 : 0) + (p.residual ? 1 : 0) + (p.accumulate ? 1 : 0);
  return {2 * mn * k + epilogues * mn,
          sum_bytes(p.a, p.scale_a, p.b, p.scale_b, p.bias, p.residual) + (p.accumulate ? p.c.bytes() : 0),
          p.c.bytes()};
}
Outputs outputs(const Fp8MatmulArgs& p) {
  return list(p.c);
}

// g 1, m 3, v 4, decay 2, m/bias1 1, v/bias2 1, sqrt 1, eps 1, quotient 1, lr 1, update 1.
Cost cost(const AdamWArgs& p) {
  int64_t state = sum_bytes(p.master, p.exp_avg, p.exp_avg_sq);
  return {17 * count(p.master), state + p.grad.bytes(), state + bytes_of(p.weight)};
}
Outputs outputs(const AdamWArgs& p) {
  return list(p.master, p.exp_avg, p.exp_avg_sq, p.weight);
}

// g 1, momentum 3, update 3.
Cost cost(const MuonMomentumArgs& p) {
  return {(p.nesterov ? 7 : 4) * count(p.momentum), sum_bytes(p.momentum, p.grad),
          sum_bytes(p.momentum, p.update)};
}
Outputs outputs(const MuonMomentumArgs& p) {
  return list(p.momentum, p.update);
}

// Decay 1, step 2.
Cost cost(const MuonApplyArgs& p) {
  return {3 * count(p.master), sum_bytes(p.master, p.update), sum_bytes(p.master, p.weight)};
}
Outputs outputs(const MuonApplyArgs& p) {
  return list(p.master, p.weight);
}

Cost cost(const ScaledSumArgs& p) {
  return {(p.b ? 3 : 1) * count(p.a), sum_bytes(p.a, p.b), p.y.bytes()};
}
Outputs outputs(const ScaledSumArgs& p) {
  return list(p.y);
}

// Five steps of 4 k^2 l + 2 k^3 each, k <= l.
Cost cost(const OrthogonaliseArgs& p) {
  double flops = 0;
  for (int i = 0; i < p.count; i++) {
    const double k = double(std::min(p.sides[size_t(i)].rows, p.sides[size_t(i)].cols));
    const double l = double(std::max(p.sides[size_t(i)].rows, p.sides[size_t(i)].cols));
    flops += 5 * (4 * k * k * l + 2 * k * k * k);
  }
  return {flops, p.x.bytes(), p.x.bytes()};
}
Outputs outputs(const OrthogonaliseArgs& p) {
  return list(p.x);
}

Cost cost(const SquareSumsArgs& p) {
  return {2 * count(p.x), p.x.bytes(), p.sums.bytes()};
}
Outputs outputs(const SquareSumsArgs& p) {
  return list(p.sums);
}

Cost cost(const CountNonfiniteArgs& p) {
  return {0, sum_bytes(p.x, p.count), p.count.bytes()};
}
Outputs outputs(const CountNonfiniteArgs& p) {
  return list(p.count);
}

}  // namespace trireme
