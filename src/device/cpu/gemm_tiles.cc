#include "device/cpu/gemm_tiles.h"

#include <atomic>

#include "base/rounding.h"
#include "device/cpu/product_sizes.h"

namespace trireme::cpu {
namespace {

using tiles::kPanel, tiles::kStep, tiles::kStepBytes, tiles::kStrip;

// Sizes of a problem and of what is packed. Scratch: partial sums f32 [M, N] where several blocks of K meet
// in a bf16 c (an f32 c keeps them itself) | panels of b | for each thread a block of packed a. With a longer
// sum no part is smaller.
struct Blocks {
  static constexpr int64_t kLongest = 3072;              // of a block of the summed dim
  static constexpr int64_t kPanelBytes = 12 << 20;       // of packed b
  static constexpr int64_t kRowBytes = 1200 << 10;       // of a block of a: it stays in L2 (2 MB)
  static constexpr int64_t kMostRows = 256, kTasks = 6;  // of a task; tasks a thread, or more
  int64_t m, n, k, kc, nc, mc, groups;
  int64_t partial = 0, panels, rows;  // bytes
  int threads;
  bool in_time;

  Blocks(const MatmulArgs& p, const Context& ctx)
      : m(rows_of(p)), n(cols_of(p)), k(depth_of(p)), threads(ctx.threads) {
    const int64_t count = (k + kLongest - 1) / kLongest, longest = std::min(round_up(k, kStep), kLongest);
    kc = round_up((k + count - 1) / count, kStep);
    panels = std::min(round_up(n, kPanel) * longest * 2, kPanelBytes);
    nc = std::min(round_up(n, kPanel), panels / (kc * 2) / kPanel * kPanel);
    const int64_t m_up = round_up(m, kStrip), least = threads == 1 ? 1 : kTasks * threads;
    // Of many rows a task takes a block with all columns, so that a is packed once, and each thread gets two
    // blocks or more, so that the last one is not waited for. Of few, tasks share the columns too.
    const int64_t most = std::min(kMostRows, kRowBytes / (longest * 2) / kStrip * kStrip);
    const bool many = p.trans_a || m >= kMostRows * threads;
    const int64_t own = (m + threads - 1) / threads, pieces = std::max<int64_t>(2, (own + most - 1) / most);
    mc = std::min(many ? round_up((own + pieces - 1) / pieces, kStrip) : most, m_up);
    rows = std::min((threads == 1 ? m_up : std::min(kMostRows, m_up)) * longest * 2, kRowBytes);
    // One block of rows uses a panel once, so that one thread packs it when it is wanted. (Of a b that is not
    // transposed a panel is a piece of each row: packing all of them along its rows is as fast.)
    in_time = threads == 1 && p.trans_b && m_up * kc * 2 <= kRowBytes;
    if (in_time) mc = m_up, nc = round_up(n, kPanel);
    const int64_t blocks = (m + mc - 1) / mc;
    groups = many || in_time ? 1 : std::clamp<int64_t>((least + blocks - 1) / blocks, 1, nc / kPanel);
    if (count > 1 && p.c.dtype != DType::f32) partial = round_up(m * n * int64_t(sizeof(float)), 64);
  }
  int64_t bytes() const { return partial + panels + threads * rows; }
};

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
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
  Product(const MatmulArgs& p, const Blocks& g, std::byte* scratch, int64_t c_bytes)
      : p_(p),
        g_(g),
        run_(*tiles::kernels()),
        a_(p.a),
        b_(p.b),
        c_(p.c),
        residual_(p.residual ? Grid(p.residual) : c_),
        f32_out_(p.c.dtype == DType::f32),
        past_caches_(!f32_out_ && !p.accumulate && std::max(g.m * g.n * 2, c_bytes) > kCached &&
                     c_.row % 64 == 0 && reinterpret_cast<uintptr_t>(p.c.data) % 64 == 0),
        partial_(reinterpret_cast<float*>(f32_out_ ? p.c.data : scratch)),
        ld_partial_(f32_out_ ? c_.row / 4 : g.n),
        panels_(scratch + g.partial),
        rows_(panels_ + g.panels) {}

  void run(const Context& ctx) {
    for (int64_t k0 = 0; k0 < g_.k; k0 += g_.kc)
      for (int64_t n0 = 0; n0 < g_.n; n0 += g_.nc) {
        const Block at{{k0, std::min(g_.k, k0 + g_.kc)}, {n0, std::min(g_.n, n0 + g_.nc)}};
        if (!g_.in_time) pack(at, ctx);
        std::atomic<int64_t> turn = 0;
        const int64_t tasks = (g_.m + g_.mc - 1) / g_.mc * g_.groups;
        parallel_for(ctx, std::min<int64_t>(g_.threads, tasks), 1, [&](int64_t begin, int64_t end, int) {
          run_.begin();
          for (int64_t t = begin; t < end; t++)
            for (int64_t i; (i = turn.fetch_add(1, std::memory_order_relaxed)) < tasks;) task(at, i, t);
          run_.end();
        });
      }
  }

 private:
  // One block of the summed dim and of columns.
  struct Block {
    Range k, n;
    int64_t panels() const { return (n.size() + kPanel - 1) / kPanel; }
    int64_t steps() const { return (k.size() + kStep - 1) / kStep; }
  };
  std::byte* panel(const Block& at, int64_t i) const {
    return panels_ + (g_.in_time ? i % 2 : i) * at.steps() * kStepBytes;
  }
  Range columns(const Block& at, int64_t i) const {
    const int64_t n = at.n.begin + i * kPanel;
    return {n, std::min(n + kPanel, at.n.end)};
  }
  void pack_transposed(const Block& at, int64_t i) const {
    const Range n = columns(at, i);
    run_.pack_transposed(b_.at(n.begin, at.k.begin), b_.row, n.size(), at.k.size(), panel(at, i));
  }
  // The part-th of so many of the rows of b^T that a panel is packed from.
  gemm::Lines source(const Block& at, int64_t i, int64_t part, int64_t parts) const {
    const Range n = columns(at, i);
    const int64_t begin = n.begin + n.size() * part / parts, end = n.begin + n.size() * (part + 1) / parts;
    return {b_.at(begin, at.k.begin), b_.row, end - begin, (at.k.size() * b_.element + 63) / 64};
  }

  // Along the rows that lie in memory.
  void pack(const Block& at, const Context& ctx) const {
    if (p_.trans_b)
      parallel_for(ctx, at.panels(), 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; i++) pack_transposed(at, i);
      });
    else
      parallel_for(ctx, at.steps(), 1, [&](int64_t begin, int64_t end, int) {
        const int64_t k = at.k.begin + begin * kStep,
                      depth = std::min(at.k.end, at.k.begin + end * kStep) - k;
        run_.pack_rows(b_.at(k, at.n.begin), b_.row, at.n.size(), depth, panels_ + begin * kStepBytes,
                       at.steps() * kStepBytes);
      });
  }

  // Also rows that tiles could load where they lie, for 16 rows far apart are slower to load than 16 lines in
  // turn. Whole products: with rows of 768 bytes no difference on a quiet core and 2 to 4 % beside a busy
  // neighbour, with 1.5 to 4.5 KB 2 to 5 %, with 8 KB, which fall on few sets of L1, 8 to 15 %.
  void pack_rows(const Block& at, Range m, std::byte* to) const {
    const int64_t strip = at.steps() * kStepBytes;
    if (p_.trans_a)
      run_.pack_a_transposed(a_.at(at.k.begin, m.begin), a_.row, m.size(), at.k.size(), to, strip);
    else
      run_.pack_a(a_.at(m.begin, at.k.begin), a_.row, m.size(), at.k.size(), to, strip);
  }

  void task(const Block& at, int64_t i, int64_t thread) {
    const int64_t first = i / g_.groups * g_.mc, group = i % g_.groups;
    const Range m{first, std::min(g_.m, first + g_.mc)};
    std::byte* packed = rows_ + thread * g_.rows;
    pack_rows(at, m, packed);
    Ending ending(*this, at);
    const int64_t end = at.panels() * (group + 1) / g_.groups, strips = (m.size() + kStrip - 1) / kStrip;
    const int64_t share = (at.steps() * kStepBytes / 64 + strips - 1) / strips;  // lines of the next panel
    for (int64_t j = at.panels() * group / g_.groups; j < end; j++) {
      if (g_.in_time) pack_transposed(at, j);
      const Range n = columns(at, j);
      for (int64_t r = 0; r < strips; r++) {
        tiles::Tile t;
        t.a = packed + r * at.steps() * kStepBytes, t.b = panel(at, j), t.steps = at.steps();
        const gemm::Lines soon = j + 1 == end ? gemm::Lines{}
                                 : g_.in_time ? source(at, j + 1, r, strips)
                                              : gemm::Lines{panel(at, j + 1) + r * share * 64, 0, 1, share};
        if (soon.rows > 0) t.soon[t.wanted++] = soon;
        const int64_t i = m.begin + r * kStrip;
        ending.tile(t, {i, std::min(kStrip, m.end - i), n.begin, n.size()});
      }
    }
  }

  static constexpr int64_t kCached = 4 << 20;  // bytes of a c that stays in caches
  struct Place {
    int64_t i, rows, j, cols;
  };
  // Tiles of one task, each of which ends while the next one's sums are made.
  class Ending {
   public:
    Ending(const Product& p, const Block& at)
        : p_(p), first_(at.k.begin == 0), last_(at.k.end == p.g_.k), to_f32_(p.f32_out_ || !last_) {}
    Ending(const Ending&) = delete;
    ~Ending() {
      if (some_) (to_f32_ ? p_.run_.finish_f32 : p_.run_.finish_bf16)(before_);
    }
    void tile(tiles::Tile& t, const Place& at) {
      float* sums = sums_[turn_ ^= 1];
      if (!first_) continue_sums(t, at, sums);
      t.sums = sums;
      const gemm::Finish f = finish(at, sums);
      if (!f.past_caches) t.soon[t.wanted++] = {f.c, f.c_row, f.rows, 2};
      if (f.residual) t.soon[t.wanted++] = {f.residual, f.residual_row, f.rows, 2};
      (to_f32_ ? p_.run_.multiply_f32 : p_.run_.multiply_bf16)(t, some_ ? &before_ : nullptr);
      before_ = f, some_ = true;
    }

   private:
    // The sums of the blocks before; at the matrix's edges through a copy.
    void continue_sums(tiles::Tile& t, const Place& at, float* sums) const {
      t.from = p_.partial(at), t.ld_from = p_.ld_partial_;
      if (at.rows == kStrip && at.cols == kPanel) return;
      std::fill_n(sums, kStrip * kPanel, 0.f);
      for (int64_t r = 0; r < at.rows; r++) std::copy_n(t.from + r * t.ld_from, at.cols, sums + r * kPanel);
      t.from = sums, t.ld_from = kPanel;
    }
    // An f32 c that is added to holds its old value until the first block's end.
    gemm::Finish finish(const Place& at, float* sums) const {
      gemm::Finish f{.sums = sums, .ld_sums = kPanel, .rows = at.rows, .cols = at.cols};
      f.accumulate = p_.p_.accumulate && (p_.f32_out_ ? first_ : last_);
      f.c = last_ ? p_.c_.at(at.i, at.j) : reinterpret_cast<std::byte*>(p_.partial(at));
      f.c_row = last_ ? p_.c_.row : 4 * p_.ld_partial_;
      if (!last_) return f;
      f.past_caches = p_.past_caches_ && at.cols == kPanel;
      if (p_.p_.bias) f.bias = p_.p_.bias.data + at.j * p_.a_.element;
      if (p_.p_.residual) f.residual = p_.residual_.at(at.i, at.j), f.residual_row = p_.residual_.row;
      return f;
    }
    const Product& p_;
    const bool first_, last_, to_f32_;
    alignas(64) float sums_[2][kStrip * kPanel];
    int turn_ = 0;
    bool some_ = false;
    gemm::Finish before_;
  };
  float* partial(const Place& at) const { return partial_ + at.i * ld_partial_ + at.j; }

  const MatmulArgs& p_;
  const Blocks& g_;
  const tiles::Kernels& run_;
  const Grid a_, b_, c_, residual_;
  const bool f32_out_, past_caches_;
  float* const partial_;
  const int64_t ld_partial_;
  std::byte *const panels_, *const rows_;
};

}  // namespace

int64_t tile_matmul_scratch_bytes(const MatmulArgs& p, const Context& ctx) {
  return Blocks(p, ctx).bytes();
}

void tile_matmul(const MatmulArgs& p, std::byte* scratch, const Context& ctx, int64_t c_bytes) {
  const Blocks g(p, ctx);
  Product(p, g, scratch, c_bytes).run(ctx);
}

}  // namespace trireme::cpu
