// What the files of attention share: tiles, the functions that work on them, and the entry points for tests.
//
// The algorithm (attention_forward.cc, attention_backward.cc) is written once, for sums in f32 or f64. It
// cuts q into blocks and blocks into strips of 16 rows, k and v into blocks of keys, and calls a set of tile
// functions that an element type and a processor provide: plain f64; f32 by Highway; bf16 by AVX512-BF16, its
// products in tile registers (AMX) where there are any; bf16 by f32 elsewhere.
//
// A *unit* is what one lane of a tile holds along the summed dim of a product: one f64, one f32, or two bf16.
// Tiles are padded with zeros: rows to strips, columns to kLane, head dims to kLane. Operands of a product:
//   left:  rows of units, a(i, k) = a[i * a_row + k * a_step]
//   right: panels of kPanel columns (the last narrower), each [units along the summed dim][columns of the
//   panel]; f32 by vectors of 8 lanes has them in pieces of 16 columns instead (attention_f32.cc), so an
//   operand is entered at multiples of 64 columns alone
#pragma once
#include <limits>

#include "base/rounding.h"
#include "device/attention_traffic.h"
#include "device/cpu/dropout.h"
#include "device/cpu/launch.h"

namespace trireme::cpu::attention {

inline constexpr int64_t kLane = 16;   // columns come in multiples of this
inline constexpr int64_t kPanel = 64;  // columns of a panel
inline constexpr int64_t kStrip = 16;  // rows that go through a block of keys together

// Rows of an operand in large memory, `stride` elements apart.
struct Rows {
  std::byte* data = nullptr;
  int64_t stride = 0, rows = 0, dim = 0;
};

// c[m][n] = (add ? keep[i] * c : 0) + a[m][k] . b[k][n]; without keep the factor is 1. m is a multiple of
// kStrip, n of kLane, k of kLane elements; a_row or a_step is 1. Each element is one chain of additions in
// ascending k, so nothing depends on how blocks are cut along m or n.
template <class Acc>
struct Product {
  const std::byte* a = nullptr;
  int64_t a_row = 0, a_step = 0;  // units
  const std::byte* b = nullptr;
  int64_t b_depth = 0, b_cols = 0;  // units along the summed dim of a whole panel; columns of all panels
  int64_t b_first = 0;              // unit of b that k = 0 means
  Acc* c = nullptr;
  int64_t ldc = 0;
  int64_t m = 0, n = 0, k = 0;  // k in units
  bool add = false;
  const Acc* keep = nullptr;
};

// Row r of a strip sees the first clamp(visible + r * step, 0, limit) of the block's keys.
struct Mask {
  int64_t visible = 0, step = 0, limit = 0;
  int64_t row(int64_t r) const { return std::clamp<int64_t>(visible + r * step, 0, limit); }
};

// Online softmax of one strip: m' = max(m, max_j scale s); p = exp(scale s - m'); keep = exp(m - m');
// l' = keep l + sum_j p; p is rounded to the element type after it was summed. Masked columns get p = 0.
template <class Acc>
struct SoftmaxTile {
  const Acc* s = nullptr;  // [16][ld]
  std::byte* p = nullptr;  // left operand [16][ld / group] units
  int64_t ld = 0, n = 0;   // columns: of a row in memory, to be written (multiple of kLane)
  Mask mask;
  Acc scale = 1;
  Acc *m = nullptr, *l = nullptr, *keep = nullptr;  // [16]
};

// Backward of one strip: p = exp(scale s - lse); ds = p (dp - delta), not yet times scale. Both are rounded
// to the element type. Written as left operands of products that sum over keys (ds_rows [16][ld / group]
// units) and over queries (p_pairs, ds_pairs [16 / group][ld] units). With group = 1 ds_pairs serves both and
// ds_rows is null.
template <class Acc>
struct GradientTile {
  const Acc *s = nullptr, *dp = nullptr;  // [16][ld]
  std::byte *ds_rows = nullptr, *p_pairs = nullptr, *ds_pairs = nullptr;
  int64_t ld = 0, n = 0;
  Mask mask;
  Acc scale = 1;
  const Acc *lse = nullptr, *delta = nullptr;  // [16]
};

// Dropout of one strip: x[r][j] = kept ? factor * x[r][j] : 0.
template <class Acc>
struct DropTile {
  Acc* x = nullptr;  // [16][ld]
  int64_t ld = 0, n = 0;
  const uint16_t* bits = nullptr;  // [16][words], see keep_bits()
  int64_t words = 0;
  Acc factor = 1;
};

template <class Acc>
struct Tiles {
  int64_t element, unit, group;  // bytes of an element, of a unit; elements in a unit

  // dst[padded][depth / group]: rows as they are.
  void (*pack_rows)(const Rows&, int64_t padded, int64_t depth, std::byte* dst);
  // Right operand whose columns are the rows of src: panels of [depth / group][columns], `padded` columns.
  void (*pack_columns)(const Rows&, int64_t padded, int64_t depth, std::byte* dst);
  // Right operand that sums over the rows of src: panels of [padded / group][columns], `depth` columns.
  void (*pack_summed)(const Rows&, int64_t padded, int64_t depth, std::byte* dst);
  void (*product)(const Product<Acc>&);
  void (*softmax)(const SoftmaxTile<Acc>&);
  void (*gradient)(const GradientTile<Acc>&);
  // dst row r = round(factor * (factors ? factors[r] : 1) * c[r])
  void (*store)(const Acc* c, int64_t ldc, Acc factor, const Acc* factors, const Rows& dst);
  // out[r] = sum_d a[r][d] b[r][d], products and sums in Acc
  void (*row_dots)(const Rows& a, const Rows& b, Acc* out);
  // Null where tiles hold no single numbers of type Acc: such a set does not serve dropout.
  void (*drop)(const DropTile<Acc>&);
  // What a thread does before and after products; null: nothing.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
};

// A thread between begin and end.
template <class Acc>
class Working {
 public:
  explicit Working(const Tiles<Acc>& t) : t_(t) {
    if (t_.begin) t_.begin();
  }
  Working(const Working&) = delete;
  ~Working() {
    if (t_.end) t_.end();
  }

 private:
  const Tiles<Acc>& t_;
};

// The rows of a left operand, `row` units apart.
struct Left {
  const std::byte* data = nullptr;
  int64_t row = 0;
};
// Rows of a large operand as a left one: where they lie if what lies there is units already and no edge needs
// zeros, else packed into dst. Rows of a head lie apart, but each is a line or two by itself.
template <class Acc>
Left left_rows(const Tiles<Acc>& t, const Rows& src, int64_t padded, int64_t depth, std::byte* dst) {
  const bool units = t.element * t.group == t.unit && src.stride % t.group == 0 &&
                     reinterpret_cast<uintptr_t>(src.data) % uintptr_t(t.unit) == 0;
  if (units && src.rows == padded && src.dim == depth) return {src.data, src.stride / t.group};
  t.pack_rows(src, padded, depth, dst);
  return {dst, depth / t.group};
}

const Tiles<double>& tiles_f64();
const Tiles<float>& tiles_f32();          // of the best target this processor has
const Tiles<float>& tiles_bf16_by_f32();  // bf16 operands, f32 arithmetic, P and dS rounded to bf16
const Tiles<float>* tiles_bf16();  // AVX512-BF16; null where it was not compiled. Ask the processor first
const Tiles<float>* tiles_amx();   // its products in tile registers; null where there are none

// Blocks as asked for by the arguments, else the ones that measured fastest (docs/attention.md). A function
// of shapes and types alone: another thread count gives the same blocks, and so the same bits.
AttentionBlocks blocks(const AttentionArgs&);
AttentionBlocks blocks(const AttentionBackwardArgs&);

// Scratch of a launch and the launch, on a given set of tile functions.
template <class Acc>
int64_t scratch_bytes(const AttentionArgs&, const Tiles<Acc>&, const Context&);
template <class Acc>
void forward(const AttentionArgs&, const Tiles<Acc>&, const Tensor& scratch, const Context&);
template <class Acc>
int64_t scratch_bytes(const AttentionBackwardArgs&, const Tiles<Acc>&, const Context&);
template <class Acc>
void backward(const AttentionBackwardArgs&, const Tiles<Acc>&, const Tensor& scratch, const Context&);

// Hands out consecutive pieces of a scratch range; over a null range it only adds up.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  std::byte* bytes(int64_t n) {
    std::byte* p = base_ ? base_ + used_ : nullptr;
    used_ += round_up(n, 64);
    return p;
  }
  template <class T>
  T* take(int64_t n) {
    return reinterpret_cast<T*>(bytes(n * int64_t(sizeof(T))));
  }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

// Asks the caches for rows that will be packed or written soon, a share at each step, so that waiting for
// memory hides behind products. Rows of one head lie far apart (the row of the whole model between them),
// which hardware does not foresee. Nothing is counted here: a hint moves no element into a tile.
class Ahead {
 public:
  void start(int64_t steps) { count_ = at_ = row_ = pending_ = 0, steps_ = steps; }
  void want(Rows rows, int64_t element) {  // at most 8 before the next start
    if (count_ == 8 || rows.rows <= 0) return;
    rows.stride *= element, rows.dim *= element;  // bytes from here on
    list_[count_++] = rows, pending_ += rows.rows;
  }
  void step() {
    if (pending_ == 0 || steps_ <= 0) return;
    int64_t n = (pending_ + steps_ - 1) / steps_;
    steps_--, pending_ -= n;
    for (; n > 0; n--) {
      const Rows& r = list_[at_];
      const std::byte* p = r.data + row_ * r.stride;
      const std::byte* end = p + r.dim;
      for (p -= reinterpret_cast<uintptr_t>(p) % 64; p < end; p += 64) __builtin_prefetch(p, 0, 3);
      if (++row_ == r.rows) at_++, row_ = 0;
    }
  }

 private:
  Rows list_[8];
  int64_t count_ = 0, at_ = 0, row_ = 0, pending_ = 0, steps_ = 0;
};

// What memory holds of a row that has seen no key: a running maximum that any score exceeds and from which a
// masked score, -inf, still differs by an infinity rather than by NaN.
inline constexpr double kNoScore = -1e30;
// A logsumexp that makes every probability of a row exactly 0.
inline constexpr double kSeesNothing = 1e30;

// Sizes that both directions need, and who sees whom.
struct Geometry {
  int64_t batch, seq, keys, heads, kv_heads, dim, v_dim;  // of a row of q, k; of v, o
  int64_t depth, v_depth;                                 // rounded up to kLane
  int64_t bq, bk;                                         // rows of a block
  int64_t bq_pad, bk_pad;                                 // rounded up to strips, to lanes
  int64_t q_blocks, k_blocks;
  bool causal;
  int64_t offset;        // row i sees keys up to i + offset when causal
  const int32_t* first;  // [batch][seq], of the first key that a row sees; null: 0

  template <class Args>
  Geometry(const Args& p, AttentionBlocks b)
      : Geometry(p.q, p.k, p.v, b, p.causal, p.offset, p.first ? p.first.template as<int32_t>() : nullptr) {}
  Geometry(const Tensor& q, const Tensor& k, const Tensor& v, AttentionBlocks b, bool causal, int64_t offset,
           const int32_t* first)
      : batch(q.shape[0]),
        seq(q.shape[1]),
        keys(k.shape[1]),
        heads(q.shape[2]),
        kv_heads(k.shape[2]),
        dim(q.shape[3]),
        v_dim(v.shape[3]),
        depth(round_up(dim, kLane)),
        v_depth(round_up(v_dim, kLane)),
        bq(b.q),
        bk(b.k),
        bq_pad(round_up(b.q, kStrip)),
        bk_pad(round_up(b.k, kLane)),
        q_blocks((seq + bq - 1) / bq),
        k_blocks((keys + bk - 1) / bk),
        causal(causal),
        offset(causal ? offset : 0),
        first(first) {}

  // Some rows may see nothing of a block, or nothing at all.
  bool gaps() const { return first || offset < 0 || keys == 0; }
  // Behind the last key that rows [row, row + n) see; and the first one that any of them sees.
  int64_t end(int64_t row, int64_t n) const {
    return causal ? std::clamp<int64_t>(row + n + offset, 0, keys) : keys;
  }
  int64_t begin(int64_t b, int64_t row, int64_t n) const {
    if (!first || n <= 0) return 0;
    return *std::min_element(first + b * seq + row, first + b * seq + row + n);
  }
  // The first query that sees keys from k0 on.
  int64_t first_row(int64_t k0) const { return causal ? std::max<int64_t>(0, k0 - offset) : 0; }
  int64_t rows_from(int64_t row) const { return std::min(kStrip, seq - row); }

  // `rows` rows from `first` of one head of t [B, S, heads, D or DV].
  Rows rows(const Tensor& t, int64_t b, int64_t head, int64_t first, int64_t rows) const {
    int64_t at = b * t.stride[0] + first * t.stride[1] + head * t.stride[2];
    return {t.data + at * size_of(t.dtype), t.stride[1], rows, t.shape[3]};
  }
  // The mask of the strip that starts at query `row` against `kn` keys from k0, and its padded columns.
  Mask mask(int64_t row, int64_t k0, int64_t kn) const {
    return causal ? Mask{row + offset - k0 + 1, 1, kn} : Mask{kn, 0, kn};
  }
  int64_t columns(int64_t row, int64_t k0, int64_t kn) const {
    if (!causal) return round_up(kn, kLane);
    int64_t last = std::min(row + kStrip, seq) - 1 + offset;
    return round_up(std::clamp<int64_t>(last - k0 + 1, 0, kn), kLane);
  }
  // The columns of the strip's scores, and none where documents begin behind them all.
  int64_t columns(int64_t b, int64_t row, int64_t k0, int64_t kn) const {
    int64_t n = columns(row, k0, kn);
    return first && begin(b, row, rows_from(row)) >= k0 + std::min(n, kn) ? 0 : n;
  }
  // Scores of keys before a row's document become -inf (with a negative scale, what that becomes).
  template <class Acc>
  void mask_documents(int64_t b, int64_t row, int64_t k0, int64_t n, Acc scale, Acc* s) const {
    if (!first) return;
    const Acc masked =
        scale < 0 ? std::numeric_limits<Acc>::infinity() : -std::numeric_limits<Acc>::infinity();
    for (int64_t r = 0; r < rows_from(row); r++)
      std::fill_n(s + r * bk_pad, std::clamp<int64_t>(first[b * seq + row + r] - k0, 0, n), masked);
  }

  // Which probabilities of the strip that starts at query `row` of a head are kept, keys k0 to k0 + n.
  KeepTile keep_tile(const DropoutMask& mask, int64_t b, int64_t head, int64_t row, int64_t k0,
                     int64_t n) const {
    const int64_t numbered = mask.heads ? mask.heads : heads, whole = mask.seq ? mask.seq : seq;
    return {.first = uint64_t(mask.first + (b * numbered + head) * whole * whole),
            .stride = whole,
            .rows = kStrip,
            .columns = n,
            .words = bk_pad / kLane,
            .row_places = mask.rows.from(row),
            .column_places = mask.keys.from(k0)};
  }
  // Panels of scores in the strips of rows [row, row + rows) against the key block.
  int64_t panels(int64_t row, int64_t rows, int64_t k0, int64_t kn) const {
    int64_t n = 0;
    for (int64_t r = 0; r < rows; r += kStrip) n += round_up(columns(row + r, k0, kn), kPanel) / kPanel;
    return n;
  }
};

// Rows of a part's results, unrounded: dst = factor * c, or dst + that. dst holds Acc.
template <class Acc>
void store_sums(const Acc* c, int64_t ldc, Acc factor, const Acc* factors, bool accumulate, const Rows& dst) {
  for (int64_t r = 0; r < dst.rows; r++) {
    Acc* out = reinterpret_cast<Acc*>(dst.data) + r * dst.stride;
    const Acc f = factors ? factor * factors[r] : factor;
    for (int64_t d = 0; d < dst.dim; d++) out[d] = (accumulate ? out[d] : Acc(0)) + f * c[r * ldc + d];
  }
}

void add_traffic(TileTraffic* to, const TileTraffic& from);  // atomic; null: nothing

}  // namespace trireme::cpu::attention
