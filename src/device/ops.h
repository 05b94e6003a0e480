// The op contract: each operation is a struct of arguments, a check, a cost, and a visit of its outputs,
// written once. Backends implement Kernels::launch for each (kernels.h).
//
// Conventions: [M, N] lists dims outer to inner. "T" is the compute type, f32, bf16 or f16; the attention op
// also takes f64. Arithmetic and sums are f32 (f64 for f64) whatever T is; one rounding at each store. A
// missing optional operand is a default Tensor. "accumulate": out = round(out + value), else out =
// round(value). All operands are on one device; rows are contiguous (stride 1 in the last dim) unless said
// otherwise. Costs count a multiply-add as 2 FLOPs and every operand's bytes once.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "base/rounding.h"
#include "device/dropout_mask.h"
#include "tensor/fp8.h"
#include "tensor/tensor.h"
#include "trace/ledger.h"

namespace trireme {

// c[M,N] (+)= op(a)[M,K] . op(b)[K,N] + bias[N] + residual[M,N]; op transposes when told. a, b: T; c: T or
// f32. Sums in f32. The row stride of each matrix may exceed its columns. residual may be c itself (same
// element, read before written). K = 0 is refused.
struct MatmulArgs {
  static constexpr std::string_view kName = "matmul";
  bool operator==(const MatmulArgs&) const = default;
  Tensor a, b, c;
  bool trans_a = false, trans_b = false;
  Tensor bias;      // T [N], optional
  Tensor residual;  // c's dtype [M,N], optional
  bool accumulate = false;
};

// An MLP's up product with gelu behind it, its down product's input gradient with gelu's before it: one op
// each where a device saves a pass over memory by that (Kernels::gelu_in_products), tanh form.
//
// c[M,N] = a[M,K] . op(b)[K,N] + bias[N], y[M,N] = gelu(c): of c as it is stored, or before it was rounded.
// a, b, bias, c, y: T.
struct MatmulGeluArgs {
  static constexpr std::string_view kName = "matmul_gelu";
  bool operator==(const MatmulGeluArgs&) const = default;
  Tensor a, b, c, y;
  bool trans_b = false;
  Tensor bias;  // optional
};
// c[M,N] = (a[M,K] . op(b)[K,N]) * gelu'(x)[M,N], the product rounded to T before or not. a, b, x, c: T.
struct MatmulGeluBackwardArgs {
  static constexpr std::string_view kName = "matmul_gelu_backward";
  bool operator==(const MatmulGeluBackwardArgs&) const = default;
  Tensor a, b, x, c;
  bool trans_b = false;
};

// y[N,C] (+)= table[ids[n], :]. ids i32 [N] (any shape of N elements), every id in [0, V) or the run stops
// with the id and its place. table T [V,C], y T. With `vocab` > 0 the table holds rows [first, first + V) of
// one of so many, and ids lie in [0, vocab): of those without a row here y is 0, or left as it is.
struct EmbeddingArgs {
  static constexpr std::string_view kName = "embedding";
  bool operator==(const EmbeddingArgs&) const = default;
  Tensor ids, table, y;
  bool accumulate = false;
  int64_t first = 0, vocab = 0;
};
// dtable[V,C] (+)= scatter of dy[N,C] by ids, added in ascending n (deterministic at any thread count), in
// f32, one rounding per element. dtable: f32 or T. Not accumulating: rows without ids become 0. first, vocab:
// as above; ids without a row are left out.
struct EmbeddingBackwardArgs {
  static constexpr std::string_view kName = "embedding_backward";
  bool operator==(const EmbeddingBackwardArgs&) const = default;
  Tensor ids, dy, dtable;
  bool accumulate = false;
  int64_t first = 0, vocab = 0;
};

// Layer normalisation (Ba et al. 2016): y = (x - mean) * rstd * weight + bias per row. x, y, weight, bias T;
// mean and rstd f32 [N] are kept for the backward pass. Two-pass variance, eps inside the root.
struct LayerNormArgs {
  static constexpr std::string_view kName = "layernorm";
  bool operator==(const LayerNormArgs&) const = default;
  Tensor x, weight, bias, y, mean, rstd;
  float eps = 1e-5f;
};
// dx = gradient wrt x, plus `add` (T [N,C], optional: the residual branch's gradient; may be dx itself).
// dweight, dbias: f32 [C], written (not accumulated): this microbatch's share.
struct LayerNormBackwardArgs {
  static constexpr std::string_view kName = "layernorm_backward";
  bool operator==(const LayerNormBackwardArgs&) const = default;
  Tensor dy, x, weight, mean, rstd, add, dx, dweight, dbias;
};

// RMS normalisation (Zhang & Sennrich 2019): y = x * rstd * weight, rstd = 1/sqrt(mean(x^2) + eps).
// x, y, dy, dx [N, C] or [N, heads, C]: each head is a row of its own, heads lie one behind the other, and
// rstd has N * heads elements. dx may be dy.
struct RmsNormArgs {
  static constexpr std::string_view kName = "rmsnorm";
  bool operator==(const RmsNormArgs&) const = default;
  Tensor x, weight, y, rstd;
  float eps = 1e-5f;
};
struct RmsNormBackwardArgs {
  static constexpr std::string_view kName = "rmsnorm_backward";
  bool operator==(const RmsNormBackwardArgs&) const = default;
  Tensor dy, x, weight, rstd, add, dx, dweight;
};

// Rotary embedding (Su et al. 2021) in place on x [N, heads, D] (outer strides free). Pairs are (i, i + D/2),
// the half-split layout of Hugging Face, or, interleaved, (2i, 2i + 1). cos, sin: f32 [positions, D/2];
// positions: i32 [N]. inverse = the backward pass.
struct RopeArgs {
  static constexpr std::string_view kName = "rope";
  bool operator==(const RopeArgs&) const = default;
  Tensor x, cos, sin, positions;
  bool inverse = false, interleaved = false;
};

// y = gelu(x); tanh approximation (GPT-2's gelu_new) or erf. x, y T [N,C].
struct GeluArgs {
  static constexpr std::string_view kName = "gelu";
  bool operator==(const GeluArgs&) const = default;
  Tensor x, y;
  bool tanh_approx = true;
};
struct GeluBackwardArgs {  // dx = dy * gelu'(x); dx may be dy
  static constexpr std::string_view kName = "gelu_backward";
  bool operator==(const GeluBackwardArgs&) const = default;
  Tensor x, dy, dx;
  bool tanh_approx = true;
};

// y = silu(gate) * up (Shazeer 2020). gate, up, dgate, dup: T [N,F], row strides free (halves of one [N,2F]
// matrix).
struct SwigluArgs {
  static constexpr std::string_view kName = "swiglu";
  bool operator==(const SwigluArgs&) const = default;
  Tensor gate, up, y;
};
struct SwigluBackwardArgs {
  static constexpr std::string_view kName = "swiglu_backward";
  bool operator==(const SwigluBackwardArgs&) const = default;
  Tensor gate, up, dy, dgate, dup;
};

// Elements moved between "large" memory (the operands) and "tile" memory (what a block of the kernel holds),
// counted by the kernel as it loads and stores tiles: the last inch. Elements, not bytes. Numbers kept per
// row (running maximum and sum, logsumexp, D) are counted apart. The counters are added to, never cleared.
struct TileTraffic {
  int64_t loads = 0, stores = 0;          // of matrices: q, k, v, o and their gradients
  int64_t row_loads = 0, row_stores = 0;  // of row statistics
  int64_t total() const { return loads + stores; }
  bool operator==(const TileTraffic&) const = default;
};
enum class FlashVersion : uint8_t { fa1, fa2 };  // loop order and rescaling of 2205.14135 | 2307.08691

// o = softmax(q k^T * scale + causal mask) v, tiled, online softmax; nothing of size S x S is stored.
// q: T [B,S,H,D]; k: T [B,S,KV,D]; v: T [B,S,KV,DV]; o: T [B,S,H,DV]; H a multiple of KV (grouped queries:
// head h reads k/v head h*KV/H); outer strides free, last stride 1. dropout: of the probabilities, after the
// softmax; element (b, h, query, key) has index ((b H + h) S + query) S + key (H: dropout.heads where given;
// S, query, key: of whole sequences where dropout.seq is given, places by its rows and keys).
// lse: f32 (f64 for f64) [B,H,S] = logsumexp of the scaled, masked scores, its outer strides free. Causal:
// blocks above the diagonal are skipped, only diagonal blocks are masked.
//
// A part of a longer attention (docs/context_parallel.md): k and v may have Sk rows, other than q's, and row
// i sees the keys j with first[b,i] <= j and, when causal, j <= i + offset. `accumulate`: o and lse hold the
// attention over other keys, and come to hold that over both. o may be of lse's type, unrounded (must be, to
// accumulate). A row that sees no key: o = 0, lse = -inf. Parts are dropped out where dropout.seq says what
// of whole sequences they are, and are not of version fa1.
struct AttentionArgs {
  static constexpr std::string_view kName = "attention";
  bool operator==(const AttentionArgs&) const = default;
  Tensor q, k, v, o, lse;
  float scale = 1;
  bool causal = true;
  int64_t offset = 0;  // of the diagonal
  Tensor first;        // i32 [B,S], optional: where a row's document begins, in [0, Sk]
  bool accumulate = false;
  DropoutMask dropout = {};
  FlashVersion version = FlashVersion::fa2;
  TileTraffic* traffic = nullptr;  // optional, host memory
  int block_q = 0, block_k = 0;    // rows of a block of q and of k, v; 0 = the backend's choice
};
// Recomputes the scores from lse (2307.08691 section 3.1.2). dq, dk, dv are written, with q's, k's, v's
// shapes and free outer strides; dk, dv sum over the heads that share them. `dout` is the gradient of o.
//
// Of a part: o (T) and lse are of the attention over all keys, so gradients of parts add up. dq, dk, dv may
// be of lse's type, unrounded; then `accumulate` adds to them.
struct AttentionBackwardArgs {
  static constexpr std::string_view kName = "attention_backward";
  bool operator==(const AttentionBackwardArgs&) const = default;
  Tensor q, k, v, o, lse, dout, dq, dk, dv;
  float scale = 1;
  bool causal = true;
  int64_t offset = 0;
  Tensor first;
  bool accumulate = false;
  DropoutMask dropout = {};  // the forward pass's: drawn again
  TileTraffic* traffic = nullptr;
  int block_q = 0, block_k = 0;
};

// The key/value cache of one layer while a model generates: k T [B,Cap,KV,D], v T [B,Cap,KV,DV], outer
// strides free. Position p of text b lies at [b, p], whatever order positions are written in.
//
// k_cache[b, positions[b,s]] = k[b,s], and v likewise. k, v: T [B,S,KV,D or DV], outer strides free.
// positions: i32 [B,S] in [-1, Cap), else the run stops; -1 = a padding row, nothing is written.
struct CacheAppendArgs {
  static constexpr std::string_view kName = "cache_append";
  bool operator==(const CacheAppendArgs&) const = default;
  Tensor k, v, positions, k_cache, v_cache;
};
// o[b,s,h] = softmax over j in [0, p] of (q[b,s,h] . k[b,j,g] * scale) times v[b,j,g], where p =
// positions[b,s] and g = h*KV/H. Forward only; q, o: T [B,S,H,D or DV], outer strides free. p = -1: a padding
// row, o = 0. Probabilities stay f32. A row's bits depend on that row's operands alone, not on B, S or
// threads.
struct CachedAttentionArgs {
  static constexpr std::string_view kName = "attention_cached";
  bool operator==(const CachedAttentionArgs&) const = default;
  Tensor q, k, v, positions, o;
  float scale = 1;
};

// Softmax cross-entropy fused with its gradient. logits T [N,V]; targets i32 [N], -1 = ignored (loss 0,
// gradient 0); loss f32 [N] = logsumexp - logit[target] over columns [0, vocab); with `backward`, logits are
// overwritten by (softmax - onehot) * grad_scale, padding columns [vocab, V) by 0. Targets outside [-1,
// vocab) stop the run.
struct CrossEntropyArgs {
  static constexpr std::string_view kName = "cross_entropy";
  bool operator==(const CrossEntropyArgs&) const = default;
  Tensor logits, targets, loss;
  int64_t vocab = 0;
  float grad_scale = 1;
  bool backward = true;
};

// Cross-entropy of logits whose columns are divided over ranks, in two ops with an exchange of three numbers
// a row between them (Shoeybi et al. 2019, section 3). logits T [N,V] are columns [first, first + vocab) of
// the whole, padding columns beyond; targets i32 [N], ids of the whole or -1.
//
// stats f32 [3,N]: the largest of the row's columns here, the sum of exp(logit - largest), and the logit of
// its target, 0 where that is elsewhere.
struct SoftmaxStatsArgs {
  static constexpr std::string_view kName = "softmax_stats";
  bool operator==(const SoftmaxStatsArgs&) const = default;
  Tensor logits, targets, stats;
  int64_t first = 0, vocab = 0;
};
// stats f32 [R,3,N] of all R ranks, merged in their order: loss f32 [N] and, with `backward`, logits as
// CrossEntropyArgs has them.
struct SplitCrossEntropyArgs {
  static constexpr std::string_view kName = "split_cross_entropy";
  bool operator==(const SplitCrossEntropyArgs&) const = default;
  Tensor logits, targets, stats, loss;
  int64_t first = 0, vocab = 0;
  float grad_scale = 1;
  bool backward = true;
};

// y[n,h] = a[n,h] beside b[n], which all heads share (DeepSeek-V2's keys, 2405.04434 equation 17). T; a
// [N,H,A], b [N,B], y [N,H,A+B], outer strides free.
struct ConcatSharedArgs {
  static constexpr std::string_view kName = "concat_shared";
  bool operator==(const ConcatSharedArgs&) const = default;
  Tensor a, b, y;
};
// da[n,h] = dy[n,h,:A]; db[n] = sum over h of dy[n,h,A:], in f32 in ascending order.
struct ConcatSharedBackwardArgs {
  static constexpr std::string_view kName = "concat_shared_backward";
  bool operator==(const ConcatSharedBackwardArgs&) const = default;
  Tensor dy, da, db;
};

// y = a + b elementwise; each of f32, bf16 or f16, equal element counts, contiguous; y may be a or b.
struct AddArgs {
  static constexpr std::string_view kName = "add";
  bool operator==(const AddArgs&) const = default;
  Tensor a, b, y;
};
// y = (mask keeps it ? x / (1 - rate) : 0) (+ residual). x, y, residual: T, equal element counts, contiguous;
// y may be x or residual. mask.rate must be above 0: where nothing is dropped nothing is launched. Its own
// backward pass, with the same mask and no residual.
struct DropoutArgs {
  static constexpr std::string_view kName = "dropout";
  bool operator==(const DropoutArgs&) const = default;
  Tensor x, residual, y;  // [N, C] where mask.seq is given
  DropoutMask mask;
};
// dst = (dst's dtype) src, to nearest even, between f32, bf16 and f16; or equal types. Contiguous, or of one
// shape with outer strides free.
struct CastArgs {
  static constexpr std::string_view kName = "cast";
  bool operator==(const CastArgs&) const = default;
  Tensor src, dst;
};
// y = 0. Contiguous, any dtype.
struct ZeroArgs {
  static constexpr std::string_view kName = "zero";
  bool operator==(const ZeroArgs&) const = default;
  Tensor y;
};
// db[C] (+)= sum over rows of dy[N,C], in f32, in an order that does not depend on the thread count. db f32
// or T.
struct ColumnSumArgs {
  static constexpr std::string_view kName = "column_sum";
  bool operator==(const ColumnSumArgs&) const = default;
  Tensor dy, db;
  bool accumulate = false;
};

// Mixture of experts (docs/moe.md). N tokens, E experts, k choices a token; R rows, one a choice, lie expert
// behind expert: those of expert e are rows [offsets[e], offsets[e + 1]).
//
// scores f32 = softmax or sigmoid of a token's logits f32 [N,E]. Its choices, ids i32 [N,k], are the k
// experts of the largest score + bias (f32 [E], optional), largest first, of equal ones the lower expert
// first. Not finite ones come last. groups > 1: experts lie in that many equal groups, of which the
// `top_groups` worthiest (of equals the lower) supply all choices; a group is worth its largest score + bias,
// or with group_pairs the sum of its two largest (DeepSeek-V2, 2405.04434, section 2.2.2; V3, 2412.19437,
// section 2.1.2). weights f32 [N,k] = scale * score of the choice, over their sum + 1e-20 with `normalise`:
// the bias chooses and weighs nothing. given: ids are read (choices made before), only weights are written.
enum class RouteScore : uint8_t { softmax, sigmoid };
struct RouteArgs {
  static constexpr std::string_view kName = "route";
  bool operator==(const RouteArgs&) const = default;
  Tensor logits, bias, ids, weights;
  RouteScore score = RouteScore::softmax;
  bool normalise = true, group_pairs = false, given = false;
  int64_t groups = 1, top_groups = 1;
  float scale = 1;
};
// dlogits f32 [N,E] from dweights f32 [N,k], the choices as they were made. balance (f32 [U,E], optional):
// the gradient with respect to each token's shares p = scores / their sum, the same for all tokens of a unit:
// token n is of unit (first + n) / unit, or with unit = 0 of n / (N / U), U then a divisor of N. z_scale:
// dlogits also get 2 z_scale logsumexp(logits) softmax(logits), the gradient of z_scale logsumexp^2 (ST-MoE,
// 2202.08906, equation 5).
struct RouteBackwardArgs {
  static constexpr std::string_view kName = "route_backward";
  bool operator==(const RouteBackwardArgs&) const = default;
  Tensor logits, ids, dweights, balance, dlogits;
  RouteScore score = RouteScore::softmax;
  bool normalise = true;
  float scale = 1, z_scale = 0;
  int64_t unit = 0, first = 0;
};
// What balancing losses are made of. Token n of logits f32 [N,E] and ids i32 [N,k] is of unit (first + n) /
// unit, below U. choices f32 [U,E] = how many choices of the unit's tokens here an expert is; shares f32
// [U,E] = the sum over those tokens of scores / their sum; squares f32 [U] = that of logsumexp(logits)^2. 0
// where a unit has no token here.
struct RouteSharesArgs {
  static constexpr std::string_view kName = "route_shares";
  bool operator==(const RouteSharesArgs&) const = default;
  Tensor logits, ids, choices, shares, squares;
  RouteScore score = RouteScore::softmax;
  int64_t unit = 1, first = 0;
};
// Where each choice's row lies. ids i32 [N,k] in [0, E), or -1 - e: a choice of e that has no row. place i32
// [N,k] is its row, source i32 [R = N k] its inverse: the choice n k + j of row r. Rows of an expert are in
// ascending order of choices. load i32 [E]: choices of each expert. capacity > 0: of each expert only the
// first `capacity` choices of every `unit` tokens (a divisor of N) have a row. Without a row place is -1;
// source of the R - offsets[E] rows at the end is too.
struct RouteOrderArgs {
  static constexpr std::string_view kName = "route_order";
  bool operator==(const RouteOrderArgs&) const = default;
  Tensor ids, offsets, place, source, load;
  int64_t capacity = 0, unit = 0;
};
// y[r] = x[source[r] / k], 0 where source[r] = -1. x T [N,C]; source i32 [R], R = N k; y T [R,C].
struct PermuteRowsArgs {
  static constexpr std::string_view kName = "permute_rows";
  bool operator==(const PermuteRowsArgs&) const = default;
  Tensor x, source, y;
};
// y[n] = add[n] + sum over j of weights[n,j] x[place[n,j]], ascending, in f32, one rounding; place -1 adds
// nothing. x T [R,C]; place i32 [N,k]; weights f32 [N,k], optional (all 1); add (optional), y T [N,C]; y may
// be add.
struct CombineRowsArgs {
  static constexpr std::string_view kName = "combine_rows";
  bool operator==(const CombineRowsArgs&) const = default;
  Tensor x, place, weights, add, y;
};
// dx[place[n,j]] = weights[n,j] dy[n], rows that no choice has become 0; dweights[n,j] = dy[n] .
// x[place[n,j]], 0 at -1. dx may be x.
struct CombineRowsBackwardArgs {
  static constexpr std::string_view kName = "combine_rows_backward";
  bool operator==(const CombineRowsBackwardArgs&) const = default;
  Tensor dy, x, place, source, weights, dx, dweights;
};
// y[r] = x[r] . op(w[e]) for the rows r of each expert e, rows of none become 0. x T [R,K]; w T [E,K,N], or
// [E,N,K] when trans_w; offsets i32 [E + 1], ascending, within [0, R]; y T [R,N]. Sums in f32.
struct GroupedMatmulArgs {
  static constexpr std::string_view kName = "grouped_matmul";
  bool operator==(const GroupedMatmulArgs&) const = default;
  Tensor x, w, offsets, y;
  bool trans_w = false;
};
// dw[e] (+)= dy_e^T . x_e over the rows of expert e. dy T [R,N], x T [R,K]; dw T or f32 [E,N,K]. An expert
// without rows gets 0 (or stays, when accumulating).
struct GroupedMatmulWeightArgs {
  static constexpr std::string_view kName = "grouped_matmul_weight";
  bool operator==(const GroupedMatmulWeightArgs&) const = default;
  Tensor dy, x, offsets, dw;
  bool accumulate = false;
};

// 8-bit floats (docs/fp8.md): a matrix is codes u8 and a scale f32 for each block of `rows` x `cols`
// elements, 0 = all of them; number = code * scale, and scales are powers of two, so that it is exact in f32
// and bf16.
struct Fp8Blocks {
  int64_t rows = 0, cols = 0;
  bool operator==(const Fp8Blocks&) const = default;
  // Of the scales of a matrix.
  Shape scales(int64_t m, int64_t n) const {
    return {rows > 0 ? div_up(m, rows) : 1, cols > 0 ? div_up(n, cols) : 1};
  }
};
// codes u8 [M,N] and scale f32 (blocks.scales) of x T [M,N], its row stride free: fp8_scale() of each block's
// largest finite |x|, or, of one block that is all of x, of amax (f32 [1], optional) where that is above 0:
// delayed scaling. What is beyond saturates. seen (f32 [1], optional) becomes the larger of itself and x's
// largest finite |x|.
struct QuantiseArgs {
  static constexpr std::string_view kName = "quantise";
  bool operator==(const QuantiseArgs&) const = default;
  Tensor x, codes, scale, amax, seen;
  Fp8Format format = Fp8Format::e4m3;
  Fp8Blocks blocks;
  int margin = 0;
};
// matmul of two such matrices: c[M,N] (+)= op(a)[M,K] . op(b)[K,N] + bias[N] + residual[M,N], the numbers
// multiplied exactly and summed in f32. Codes dense; c f32, bf16 or f16, its row stride free; bias of c's
// type or, where c is f32, of any; residual of c's. K = 0 is refused.
struct Fp8MatmulArgs {
  static constexpr std::string_view kName = "fp8_matmul";
  bool operator==(const Fp8MatmulArgs&) const = default;
  Tensor a, scale_a, b, scale_b, c;
  Fp8Format format_a = Fp8Format::e4m3, format_b = Fp8Format::e4m3;
  Fp8Blocks blocks_a, blocks_b;
  bool trans_a = false, trans_b = false;
  Tensor bias, residual;
  bool accumulate = false;
};

// AdamW (Loshchilov & Hutter 2019) over flat ranges of n elements, in f32:
//   g = grad * grad_scale;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
//   master = master - lr * weight_decay * master - lr * (m / bias1) / (sqrt(v / bias2) + eps)   [PyTorch's
//   order]
// bias_i = 1 - beta_i^step. weight: bf16 or f16 copy of master, optional (f32 runs train master itself).
// grad: f32 or bf16. Moments: both f32, or both bf16 on the CPU: read exactly, and rounded stochastically
// when stored, with random bits that are a function of (key, global element).
struct AdamWArgs {
  static constexpr std::string_view kName = "adamw";
  bool operator==(const AdamWArgs&) const = default;
  Tensor master, exp_avg, exp_avg_sq, grad, weight;
  float lr = 0, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0;
  float bias1 = 1, bias2 = 1, grad_scale = 1;
  // bf16 moments only: element i of the range is element j = first + i of a box of the tensor; its row-major
  // index in the whole tensor is corner + (j / row) * stride + j % row.
  uint64_t key = 0;
  int64_t first = 0, row = 1, stride = 1, corner = 0;
};

// Muon (Jordan et al. 2024), before its matrices are orthogonalised, over flat ranges of n elements, in f32:
//   g = grad * grad_scale;  momentum += (1-beta) (g - momentum);  update = g + beta (momentum - g)
// (without nesterov: update = momentum). momentum f32; grad f32 or bf16; update f32 or bf16: the type that it
// is orthogonalised in.
struct MuonMomentumArgs {
  static constexpr std::string_view kName = "muon_momentum";
  bool operator==(const MuonMomentumArgs&) const = default;
  Tensor momentum, grad, update;
  float beta = 0.95f, grad_scale = 1;
  bool nesterov = true;
};
// ... and after: master = keep * master - lr * update, with the orthogonal update. master f32; update f32 or
// bf16; weight: bf16 or f16 copy of master, optional.
struct MuonApplyArgs {
  static constexpr std::string_view kName = "muon_apply";
  bool operator==(const MuonApplyArgs&) const = default;
  Tensor master, update, weight;
  float lr = 0, keep = 1;
};
// y = alpha a + beta b, in f32, one rounding. a, b, y: T, equal element counts, contiguous; b optional; y may
// be a or b.
struct ScaledSumArgs {
  static constexpr std::string_view kName = "scaled_sum";
  bool operator==(const ScaledSumArgs&) const = default;
  Tensor a, b, y;
  float alpha = 1, beta = 1;
};

// Replaces each matrix of x by its orthogonal factor: five Newton-Schulz steps, as optim/newton_schulz.h
// defines them. x: f32 [sum of rows * cols]; the matrices are stored one after the other, row-major. Only
// devices that return true from Kernels::orthogonalises() run it. The cost counts the products of the
// definition.
struct OrthogonaliseArgs {
  static constexpr std::string_view kName = "orthogonalise";
  static constexpr int kMost = 16;  // matrices
  struct Sides {
    int64_t rows = 0, cols = 0;
    int64_t numel() const { return rows * cols; }
    bool operator==(const Sides&) const = default;
  };
  bool operator==(const OrthogonaliseArgs&) const = default;
  Tensor x;
  std::array<Sides, kMost> sides = {};
  int count = 0;  // matrices
};

// sums[i] = sum of squares, in double, of block i of 4,096 elements (kFlatBlock) of x; order inside a block
// is fixed. x: f32, bf16 or f16 [n]; sums: f64 [ceil(n / 4096)].
struct SquareSumsArgs {
  static constexpr std::string_view kName = "square_sums";
  bool operator==(const SquareSumsArgs&) const = default;
  Tensor x, sums;
};

// count i64 [1] += number of elements of x that are not finite. Any float dtype, rows strided freely. For
// finding where a bad value first appeared.
struct CountNonfiniteArgs {
  static constexpr std::string_view kName = "count_nonfinite";
  bool operator==(const CountNonfiniteArgs&) const = default;
  Tensor x, count;
};

// X-macro over all ops, for kernels.h, meta and the harness; operands.h lists the tensors of each. (Each
// formatting would indent it one step more.)
// clang-format off
#define TRIREME_OPS(X)                                                                                       \
  X(MatmulArgs) X(MatmulGeluArgs) X(MatmulGeluBackwardArgs)                                                 \
  X(EmbeddingArgs) X(EmbeddingBackwardArgs) X(LayerNormArgs) X(LayerNormBackwardArgs)          \
  X(RmsNormArgs) X(RmsNormBackwardArgs) X(RopeArgs) X(GeluArgs) X(GeluBackwardArgs) X(SwigluArgs)            \
  X(SwigluBackwardArgs) X(AttentionArgs) X(AttentionBackwardArgs) X(CacheAppendArgs)              \
  X(CachedAttentionArgs) X(ConcatSharedArgs) X(ConcatSharedBackwardArgs)                                     \
  X(CrossEntropyArgs) X(SoftmaxStatsArgs) X(SplitCrossEntropyArgs) X(AddArgs)         \
  X(CastArgs)                                                                                                \
  X(DropoutArgs) X(ZeroArgs) X(ColumnSumArgs) X(RouteArgs) X(RouteBackwardArgs) X(RouteSharesArgs)           \
  X(RouteOrderArgs)                                                                                          \
  X(PermuteRowsArgs) X(CombineRowsArgs) X(CombineRowsBackwardArgs) X(GroupedMatmulArgs)                      \
  X(GroupedMatmulWeightArgs) X(QuantiseArgs) X(Fp8MatmulArgs) X(AdamWArgs) X(MuonMomentumArgs) X(MuonApplyArgs)                               \
  X(ScaledSumArgs) X(OrthogonaliseArgs) X(SquareSumsArgs) X(CountNonfiniteArgs)
// clang-format on

// check: shapes, dtypes and strides fit the contract, else an invariant error that names op, operand and
// shapes. cost: FLOPs and bytes. outputs: the tensors that the op writes (for observers), at most 4.
struct Outputs {
  Tensor t[4];
  int n = 0;
};
#define TRIREME_DECLARE_OP(Args) \
  void check(const Args&);       \
  Cost cost(const Args&);        \
  Outputs outputs(const Args&);
TRIREME_OPS(TRIREME_DECLARE_OP)
#undef TRIREME_DECLARE_OP

}  // namespace trireme
