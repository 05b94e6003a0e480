// The loops of our own matrix product (gemm.h), for any element type.
#include "device/cpu/gemm.h"

#include <atomic>

#include "base/rounding.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/gemm_packed.h"
#include "device/cpu/gemm_tiles.h"
#include "device/cpu/product_sizes.h"

namespace trireme::cpu {
namespace {

using gemm::kPanel, gemm::kStrip;

// Sizes of a problem and of what is packed. Scratch: partial sums f32 [M, N] where several blocks of K meet
// in a bf16 c (an f32 c keeps them itself) | all panels of b of a block of K, where threads share them | for
// each thread its own panel of b, where they do not | and a block of packed a.
//
// Panels are shared where each would be packed for five blocks of rows or more: packing one costs as much as
// the sums of two or three strips. With fewer, packing it into L2 just before its use is the cheaper way
// (measured in training steps: 8 % less time at 3072 rows, 3 % more at 1536).
struct Blocks {
  int64_t m, n, k, kc, mc;
  int64_t partial = 0, panel, shared = 0, packed = 0;  // bytes
  int threads;

  Blocks(const MatmulArgs& p, const gemm::Kernels& run, const Context& ctx)
      : m(rows_of(p)), n(cols_of(p)), k(depth_of(p)) {
    // A panel of b fills less than half of L2; packed a fills the rest, or half of it where panels come from
    // farther away.
    const int64_t element = run.element, most = longest(p, run);
    int64_t count = (k + most - 1) / most;
    kc = round_up((k + count - 1) / count, 32);
    mc = round_up(m, kStrip);
    panel = kc * kPanel * element;
    if (p.trans_a) {
      if (m > 4 * run.packed_rows) shared = (n + kPanel - 1) / kPanel * panel;
      mc = std::min(mc, shared ? run.packed_rows / 2 : run.packed_rows);
      packed = mc / kStrip * round_up(gemm::strip_bytes((std::min(kc, k) * element + 3) / 4), 64);
    }
    if (kc < k && p.c.dtype != DType::f32) partial = round_up(m * n * int64_t(sizeof(float)), 64);
    threads = int(std::min<int64_t>(ctx.threads, (m + kStrip - 1) / kStrip));
  }
  // Elements of the longest block of the summed dim, a multiple of 32.
  static int64_t longest(const MatmulArgs& p, const gemm::Kernels& run) {
    return (p.trans_a ? run.longest_packed : run.longest) / run.element;
  }
  int64_t bytes() const { return partial + shared + threads * of_thread(); }
  int64_t of_thread() const { return (shared ? 0 : panel) + packed; }
};

// Lines of what will be packed or read next, a share for each strip, so that nothing waits for memory when
// its turn comes.
class Ahead {
 public:
  Ahead() = default;
  Ahead(const std::byte* rows, int64_t row, int64_t count, int64_t bytes, int64_t steps)
      : at_(rows),
        row_(row),
        lines_((bytes + 63) / 64),
        left_(count),
        share_((count + steps - 1) / std::max<int64_t>(1, steps)) {}
  gemm::Lines step() {
    const int64_t n = std::min(share_, left_);
    const gemm::Lines lines{at_, row_, n, lines_};
    at_ += n * row_, left_ -= n;
    return lines;
  }

 private:
  const std::byte* at_ = nullptr;
  int64_t row_ = 0, lines_ = 0, left_ = 0, share_ = 0;
};

// A matrix as its tiles are found: where element (i, j) lies.
struct Grid {
  std::byte* data;
  int64_t row, element;  // bytes
  explicit Grid(const Tensor& t)
      : data(t.data),
        row((t.shape[0] > 1 ? t.stride[0] : t.shape[1]) * size_of(t.dtype)),
        element(size_of(t.dtype)) {}
  std::byte* at(int64_t i, int64_t j) const { return data + i * row + j * element; }
};

class Product {
 public:
  Product(const MatmulArgs& p, const Blocks& g, const gemm::Kernels& k, std::byte* scratch)
      : g_(g),
        k_(k),
        scratch_(scratch),
        a_(p.a),
        b_(p.b),
        c_(p.c),
        residual_(p.residual ? Grid(p.residual) : c_),
        bias_(p.bias.data),
        trans_a_(p.trans_a),
        trans_b_(p.trans_b),
        has_residual_(bool(p.residual)),
        accumulate_(p.accumulate),
        f32_out_(p.c.dtype == DType::f32),
        multiply_to_(p.c.dtype == p.a.dtype ? k.multiply_to_same : k.multiply_to_f32),
        finish_(p.c.dtype == p.a.dtype ? k.finish_same : k.finish_f32) {
    partial_ = reinterpret_cast<float*>(f32_out_ ? p.c.data : scratch);
    ld_partial_ = f32_out_ ? c_.row / 4 : g.n;
  }

  void run(const Context& ctx) {
    if (g_.shared) return run_shared(ctx);
    parallel_for(ctx, g_.threads, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; t++) one_blocked_sum() ? share(t) : keep_own(t);
    });
  }

 private:
  struct Range {
    int64_t begin, end;
    int64_t strips() const { return (end - begin + kStrip - 1) / kStrip; }
  };
  // Packed a is read 48 columns of a row at a time: a share that begins elsewhere reads a line more of each.
  Range rows_of_thread(int64_t t) const {
    const int64_t unit = trans_a_ && g_.m >= 32 * kStrip * g_.threads ? 8 * kStrip : kStrip;
    const int64_t units = (g_.m + unit - 1) / unit;
    return {units * t / g_.threads * unit, std::min(g_.m, units * (t + 1) / g_.threads * unit)};
  }
  std::byte* own_scratch(int64_t t) const { return scratch_ + g_.partial + g_.shared + t * g_.of_thread(); }
  bool one_blocked_sum() const { return !trans_a_ && g_.kc >= g_.k && g_.threads <= kMostSharing; }

  // A thread's own rows first, panel after panel; then panels that another thread has not come to, so that a
  // core slowed by a neighbour does not hold up the others. Of few rows, all: each panel is then packed once,
  // and a thread's own panels are neighbours, for two threads that write neighbouring lines of c take them
  // from each other's caches.
  void share(int64_t own) {
    const int64_t panels = (g_.n + kPanel - 1) / kPanel;
    const bool few = g_.m < kFewRows * g_.threads && (panels % g_.threads == 0 || panels >= 12 * g_.threads);
    for (int64_t i = 0; i < g_.threads; i++) {
      const int64_t t = (own + i) % g_.threads;
      const Range rows = few ? Range{0, g_.m} : rows_of_thread(t);
      const int64_t first = few ? panels * t / g_.threads : 0;
      const int64_t last = few ? panels * (t + 1) / g_.threads : panels;
      for (int64_t p; (p = first + turns_[t].next.fetch_add(1, std::memory_order_relaxed)) < last;)
        panel(rows, p * kPanel, 0, g_.k, own_scratch(own));
    }
  }

  // Products of packed a, or of several blocks of K.
  void keep_own(int64_t t) {
    auto [begin, end] = rows_of_thread(t);
    std::byte* panel_at = own_scratch(t);
    std::byte* packed = trans_a_ ? panel_at + g_.panel : nullptr;
    for (int64_t m0 = begin; m0 < end; m0 += g_.mc)
      for (int64_t k0 = 0; k0 < g_.k; k0 += g_.kc) {
        const Range rows{m0, std::min(end, m0 + g_.mc)};
        const int64_t k1 = std::min(g_.k, k0 + g_.kc), steps = rows.strips();
        for (int64_t n0 = 0; n0 < g_.n; n0 += kPanel) {
          pack(n0, k0, k1, panel_at);
          if (n0 + kPanel < g_.n) {
            strips(rows, n0, k0, k1, panel_at, packed, {next_panel(n0 + kPanel, k0, k1, steps), {}});
            continue;
          }
          const bool deeper = k1 < g_.k;  // the next block
          const Range next{deeper ? m0 : rows.end, end};
          const int64_t k = deeper ? k1 : 0, last = std::min(g_.k, k + g_.kc);
          Soon soon;
          if (next.begin < end) soon = {next_panel(0, k, last, steps), next_group(next, k, last, steps)};
          strips(rows, n0, k0, k1, panel_at, packed, soon);
        }
      }
  }

  std::byte* shared_panel(int64_t n0) const { return scratch_ + g_.partial + n0 / kPanel * g_.panel; }

  // Products of packed a and shared panels: all threads pack the panels, then each goes through its rows.
  void run_shared(const Context& ctx) {
    for (int64_t k0 = 0; k0 < g_.k; k0 += g_.kc) {
      const int64_t k1 = std::min(g_.k, k0 + g_.kc);
      parallel_for(ctx, (g_.n + kPanel - 1) / kPanel, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t p = begin; p < end; p++) pack(p * kPanel, k0, k1, shared_panel(p * kPanel));
      });
      parallel_for(ctx, g_.threads, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; t++) rows_of_shared(t, k0, k1);
      });
    }
  }
  void rows_of_shared(int64_t t, int64_t k0, int64_t k1) {
    auto [begin, end] = rows_of_thread(t);
    const int64_t units = (k1 - k0 + k_.group - 1) / k_.group;
    for (int64_t m0 = begin; m0 < end; m0 += g_.mc) {
      const Range rows{m0, std::min(end, m0 + g_.mc)};
      for (int64_t n0 = 0; n0 < g_.n; n0 += kPanel) {
        const bool last = n0 + kPanel >= g_.n, more = !last || rows.end < end;
        Soon soon;
        soon.panel = {shared_panel(last ? 0 : n0 + kPanel), 4 * kPanel, more ? units : 0, 4 * kPanel,
                      rows.strips()};
        if (last) soon.rows = next_group({rows.end, end}, k0, k1, rows.strips());
        strips(rows, n0, k0, k1, shared_panel(n0), own_scratch(t), soon);
      }
    }
  }
  void pack(int64_t n0, int64_t k0, int64_t k1, std::byte* panel) const {
    (trans_b_ ? k_.pack_transposed : k_.pack_rows)(b_source(n0, k0), b_.row, std::min(kPanel, g_.n - n0),
                                                   k1 - k0, panel);
  }

  // What comes after: the next panel; the rows of a that are packed next.
  struct Soon {
    Ahead panel, rows;
  };
  // Sums over [k0, k1) of some rows and one panel of columns. packed: where the rows' strips lie, if a is
  // packed. The first panel's pass packs them, whole lines of a's rows at a time, just before their sums: the
  // lines of the next are asked for meanwhile.
  void panel(Range rows, int64_t n0, int64_t k0, int64_t k1, std::byte* panel) {
    pack(n0, k0, k1, panel);
    strips(rows, n0, k0, k1, panel, nullptr, {next_panel(n0 + kPanel, k0, k1, rows.strips()), {}});
  }
  void strips(Range rows, int64_t n0, int64_t k0, int64_t k1, const std::byte* panel, std::byte* packed,
              Soon soon) {
    const int64_t cols = std::min(kPanel, g_.n - n0);
    const int64_t strip = gemm::strip_bytes((k1 - k0 + k_.group - 1) / k_.group);
    for (int64_t i = rows.begin; i < rows.end; i += kStrip) {
      if (packed && n0 == 0 && (i - rows.begin) % group() == 0) {
        const int64_t end = std::min(rows.end, i + group());
        k_.pack_strips(a_.at(k0, i), a_.row, end - i, k1 - k0, packed);
        if (end < rows.end) soon.rows = next_group({end, rows.end}, k0, k1, group() / kStrip);
      }
      tile({i, std::min(kStrip, rows.end - i), n0, cols, k0, k1, std::min(kStrip, rows.end - i - kStrip)},
           packed, panel, soon.panel.step(), soon.rows.step());
      if (packed) packed += strip;
    }
  }
  // Rows of c whose columns of a fill three lines.
  int64_t group() const { return 192 / k_.element; }
  Ahead next_group(Range rows, int64_t k0, int64_t k1, int64_t steps) const {
    const int64_t n = trans_a_ ? std::clamp<int64_t>(rows.end - rows.begin, 0, group()) : 0;
    return {a_.at(k0, rows.begin), a_.row, n ? k1 - k0 : 0, n * k_.element, steps};
  }
  const std::byte* b_source(int64_t n0, int64_t k0) const { return trans_b_ ? b_.at(n0, k0) : b_.at(k0, n0); }
  Ahead next_panel(int64_t n0, int64_t k0, int64_t k1, int64_t steps) const {
    int64_t cols = std::clamp<int64_t>(g_.n - n0, 0, kPanel), depth = k1 - k0;
    return {b_source(n0, k0), b_.row,
            trans_b_ ? cols
            : cols   ? depth
                     : 0,
            (trans_b_ ? depth : cols) * k_.element, steps};
  }

  struct Place {
    int64_t i, rows, n0, cols, k0, k1;
    int64_t rows_after;  // of the strip behind this one; none if <= 0
  };
  void tile(const Place& at, const std::byte* packed, const std::byte* panel, const gemm::Lines& later,
            const gemm::Lines& rows) {
    alignas(64) float sums[kStrip * kPanel];
    bool first = at.k0 == 0, last = at.k1 == g_.k, whole = at.cols == kPanel;
    float* partial = partial_ + at.i * ld_partial_ + at.n0;
    gemm::Tile t;
    t.units = (at.k1 - at.k0) / k_.group;
    if (packed) {
      t.a = packed, t.a_row = k_.element * k_.group, t.a_step = t.a_row * kStrip;
      t.units = (at.k1 - at.k0 + k_.group - 1) / k_.group;
    } else {
      t.a = a_.at(at.i, at.k0), t.a_row = a_.row, t.a_step = k_.element * k_.group;
      t.half = (at.k1 - at.k0) % k_.group != 0;
    }
    t.b = panel;
    // Sums go through memory between blocks of K; a narrow last panel keeps to
    // its own columns.
    if (!first) {
      t.from = partial, t.ld_from = ld_partial_;
      if (!whole) {
        copy(partial, ld_partial_, sums, kPanel, at);
        t.from = sums, t.ld_from = kPanel;
      }
    }
    bool direct = !last && whole && !(first && accumulate_ && f32_out_);
    t.sums = direct ? partial : sums, t.ld_sums = direct ? ld_partial_ : kPanel;
    ask_for(t, at, packed != nullptr);
    for (const gemm::Lines& l : {later, rows})
      if (l.rows > 0) t.soon[t.wanted++] = l;
    if (last && whole) {
      multiply_to_[at.rows - 1](t, finish_of(at, first));
      return;
    }
    k_.multiply[at.rows - 1](t);
    if (last) {
      gemm::Finish f = finish_of(at, first);
      f.sums = sums, f.ld_sums = kPanel;
      finish_(f);
    } else if (!direct) {
      keep(at, sums, partial, first);
    }
  }

  // Partial sums of the first blocks of K. An f32 c that is added to holds its
  // old value until then.
  void keep(const Place& at, float* sums, float* partial, bool first) {
    if (first && accumulate_ && f32_out_)
      for (int64_t r = 0; r < at.rows; r++)
        for (int64_t j = 0; j < at.cols; j++) sums[r * kPanel + j] += partial[r * ld_partial_ + j];
    copy(sums, kPanel, partial, ld_partial_, at);
  }
  static void copy(const float* from, int64_t ld_from, float* to, int64_t ld_to, const Place& at) {
    for (int64_t r = 0; r < at.rows; r++) std::copy_n(from + r * ld_from, at.cols, to + r * ld_to);
  }

  gemm::Finish finish_of(const Place& at, bool first) const {
    gemm::Finish f{.rows = at.rows, .cols = at.cols};
    f.c = c_.at(at.i, at.n0), f.c_row = c_.row;
    if (bias_) f.bias = bias_ + at.n0 * k_.element;
    if (has_residual_) f.residual = residual_.at(at.i, at.n0), f.residual_row = residual_.row;
    f.accumulate = accumulate_ && (first || !f32_out_);
    return f;
  }

  // What this tile's end touches, and the head of the next strip's rows of a. In a step all of it is cold,
  // and rows lie too far apart for hardware to foresee the next.
  void ask_for(gemm::Tile& t, const Place& at, bool packed) const {
    auto want = [&](const std::byte* data, int64_t row, int64_t rows, int64_t bytes) {
      if (rows > 0) t.soon[t.wanted++] = {data, row, rows, (bytes + 63) / 64};
    };
    if (at.k1 < g_.k)
      want(reinterpret_cast<const std::byte*>(partial_ + at.i * ld_partial_ + at.n0), 4 * ld_partial_,
           at.rows, 4 * at.cols);
    else
      want(c_.at(at.i, at.n0), c_.row, at.rows, at.cols * c_.element);
    if (at.k1 == g_.k && has_residual_)
      want(residual_.at(at.i, at.n0), residual_.row, at.rows, at.cols * residual_.element);
    if (!packed)
      want(a_.at(at.i + kStrip, at.k0), a_.row, at.rows_after, std::min(kHead, (at.k1 - at.k0) * k_.element));
  }

  struct alignas(64) Turn {
    std::atomic<int64_t> next = 0;
  };
  // Below kFewRows a thread, packing a panel for each costs more than rows of a from the cache that has them.
  static constexpr int64_t kMostSharing = 64, kFewRows = 1024;
  static constexpr int64_t kHead = 512;  // bytes of a row of a; from there on hardware follows

  const Blocks& g_;
  const gemm::Kernels& k_;
  std::byte* scratch_;
  const Grid a_, b_, c_, residual_;
  const std::byte* bias_;
  const bool trans_a_, trans_b_, has_residual_, accumulate_, f32_out_;
  void (*const* const multiply_to_)(const gemm::Tile&, const gemm::Finish&);  // by rows - 1
  void (*const finish_)(const gemm::Finish&);
  float* partial_;
  int64_t ld_partial_;
  Turn turns_[kMostSharing];  // by thread: how many of its panels are taken
};

}  // namespace

namespace gemm {
namespace {
// g++ and clang write nothing of these of their own accord.
bool has_avx512() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
}  // namespace

Instructions& newest() {
  static Instructions newest = Instructions::tiles;
  return newest;
}

const Kernels* kernels(DType t) {
  static const bool bf16_able = multiplies_natively(DType::bf16), avx512_able = bf16_able || has_avx512();
  const bool able = t == DType::bf16 ? bf16_able : avx512_able;
  return able && newest() >= Instructions::avx512 ? avx512_kernels(t) : nullptr;
}
}  // namespace gemm

namespace {
bool in_tiles(const MatmulArgs& p) {
  return p.a.dtype == DType::bf16 && gemm::newest() >= gemm::Instructions::tiles && tiles::kernels();
}
bool by_packed(DType t) {
  return t == DType::f32 && !gemm::kernels(t) && packed::kernels();
}
}  // namespace

bool takes_own_matmul(const MatmulArgs& p, const Context& ctx) {
  if (!gemm::kernels(p.a.dtype) && !by_packed(p.a.dtype)) return false;
  // An f32 c that holds partial sums cannot at the same time be the residual.
  if (p.residual && p.residual.data == p.c.data) return false;
  return rows_of(p) >= 24 * ctx.threads && cols_of(p) >= 48 && depth_of(p) >= 32;
}

bool has_own_matmul(DType t) {
  return gemm::kernels(t) || by_packed(t);
}

void own_lower_matmul(const MatmulArgs& p, std::byte* scratch, const Context& ctx) {
  if (by_packed(p.a.dtype)) return packed_matmul(p, scratch, ctx, true);
  own_matmul(p, scratch, ctx);
}

int64_t own_matmul_panel(DType t) {
  return by_packed(t) ? packed::kPanel : kPanel;
}

int64_t own_matmul_scratch_bytes(const MatmulArgs& p, const Context& ctx) {
  if (in_tiles(p)) return tile_matmul_scratch_bytes(p, ctx);
  if (by_packed(p.a.dtype)) return packed_matmul_scratch_bytes(p, ctx);
  return Blocks(p, *gemm::kernels(p.a.dtype), ctx).bytes();
}

// Longer sums want partial ones, and blocks of them are at most as long as the longest.
int64_t own_matmul_most_scratch_bytes(const MatmulArgs& p, const Context& ctx) {
  if (in_tiles(p)) return tile_matmul_scratch_bytes(p, ctx);
  if (by_packed(p.a.dtype)) return packed_matmul_scratch_bytes(p, ctx);
  const gemm::Kernels& run = *gemm::kernels(p.a.dtype);
  const Blocks g(p, run, ctx);
  require(!g.shared, "the most scratch of a shorter sum is not known where panels are shared");
  if (g.kc >= g.k) return g.bytes();
  MatmulArgs one_block = p;
  const int64_t depth = Blocks::longest(p, run);
  one_block.a = p.a.narrow(p.trans_a ? 0 : 1, 0, depth);
  one_block.b = p.b.narrow(p.trans_b ? 1 : 0, 0, depth);
  return g.partial + Blocks(one_block, run, ctx).bytes();
}

void own_matmul(const MatmulArgs& p, std::byte* scratch, const Context& ctx, int64_t c_bytes) {
  if (in_tiles(p)) return tile_matmul(p, scratch, ctx, c_bytes);
  if (by_packed(p.a.dtype)) return packed_matmul(p, scratch, ctx);
  const gemm::Kernels& run = *gemm::kernels(p.a.dtype);
  Product(p, Blocks(p, run, ctx), run, scratch).run(ctx);
}

}  // namespace trireme::cpu
