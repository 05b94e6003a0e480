#include "device/cpu/gemm_packed.h"

#include <atomic>

#include "base/rounding.h"
#include "device/cpu/product_sizes.h"

namespace trireme::cpu {
namespace {

// Sizes of a problem and of what is packed, in elements. Scratch: panels of b | for each thread its block of
// a. With a longer sum no part is smaller.
struct PackedBlocks {
  static constexpr int64_t kPiece = 384;            // of the summed dim, at most: a panel of 36 KB
  static constexpr int64_t kPanels = 3 << 20;       // of packed b: 12 MB
  static constexpr int64_t kPanelsAlone = 3 << 18;  // ... where other threads have products of their own
  static constexpr int64_t kColumns = 2040;         // of a block: all, up to so many
  static constexpr int64_t kMostRows = 192, kLeastRows = 64;  // of a task
  int64_t m, n, k, piece, depth, nc, mc;
  int64_t panels, rows;
  int threads;

  PackedBlocks(const MatmulArgs& p, const Context& ctx)
      : m(rows_of(p)), n(cols_of(p)), k(depth_of(p)), threads(ctx.threads) {
    const int64_t k_up = round_up(k, packed::kStep), n_up = round_up(n, packed::kPanel);
    piece = round_up(div_up(k, div_up(k, kPiece)), packed::kStep);
    const int64_t most = threads == 1 ? kPanelsAlone : kPanels;
    nc = std::clamp(most / k_up / packed::kPanel * packed::kPanel, std::min(n_up, kColumns), n_up);
    depth = nc * k_up <= most ? k_up : most / nc / piece * piece;
    // And the lines between panels: of one piece all there are, of several each longer than kPiece / 2.
    const int64_t all = n_up / packed::kPanel;
    const int64_t count = std::min(all * div_up(k, kPiece), all + most / packed::kPanel / (kPiece / 2));
    panels = std::min(n_up * k_up, most) + count * packed::panel_floats(0);
    mc = std::min(kMostRows, round_up(m, packed::kStrip));
    rows = mc / packed::kStrip * packed::strip_floats(std::min(k_up, kPiece));
  }
  // Of the task that begins at this row: its share of what is left in two rounds, in whole lines of a
  // stored-transposed a; of few rows a thread's share.
  int64_t rows_of_task(int64_t row) const {
    const int64_t share = round_up(div_up(m, threads), packed::kStrip), left = m - row;
    const int64_t least = share <= kMostRows ? share : kLeastRows;
    return std::min(left, std::clamp(round_up(div_up(left, 2 * threads), 16), least, mc));
  }
  int64_t bytes() const { return (panels + threads * rows) * int64_t(sizeof(float)); }
};

// A matrix as its tiles are found: where element (i, j) lies.
struct FloatGrid {
  float* data;
  int64_t row;  // floats
  explicit FloatGrid(const Tensor& t)
      : data(t ? t.as<float>() : nullptr), row(t && t.shape[0] > 1 ? t.stride[0] : t.cols()) {}
  float* at(int64_t i, int64_t j) const { return data + i * row + j; }
};

class PackedProduct {
 public:
  PackedProduct(const MatmulArgs& p, const PackedBlocks& g, std::byte* scratch, bool lower)
      : lower_(lower),
        p_(p),
        g_(g),
        run_(*packed::kernels()),
        a_(p.a),
        b_(p.b),
        c_(p.c),
        residual_(p.residual),
        panels_(reinterpret_cast<float*>(scratch)),
        rows_(panels_ + g.panels) {}

  void run(const Context& ctx) const {
    for (int64_t k0 = 0; k0 < g_.k; k0 += g_.depth)
      for (int64_t n0 = 0; n0 < g_.n; n0 += g_.nc) {
        const Block at{k0, std::min(g_.k, k0 + g_.depth), n0, std::min(g_.n, n0 + g_.nc)};
        pack(at, ctx);
        std::atomic<int64_t> next = 0;  // row that no task has taken
        parallel_for(ctx, std::min<int64_t>(g_.threads, div_up(g_.m, packed::kStrip)), 1,
                     [&](int64_t begin, int64_t end, int) {
                       for (int64_t t = begin; t < end; t++) take_tasks(at, next, rows_ + t * g_.rows);
                     });
      }
  }

 private:
  // One block of the summed dim and of columns; packed as [pieces of the summed dim][panels].
  struct Block {
    int64_t k0, k1, n0, n1;
    int64_t panels() const { return div_up(n1 - n0, packed::kPanel); }
  };
  struct Piece {
    int64_t k0, depth, steps;
  };
  Piece piece_at(const Block& at, int64_t k0) const {
    const int64_t depth = std::min(g_.piece, at.k1 - k0);
    return {k0, depth, round_up(depth, packed::kStep)};
  }
  float* panel(const Block& at, const Piece& of, int64_t i) const {
    const int64_t before = (of.k0 - at.k0) / g_.piece * at.panels() * packed::panel_floats(g_.piece);
    return panels_ + before + i * packed::panel_floats(of.steps);
  }

  // Four panels at a time: six lines of a row of b.
  void pack(const Block& at, const Context& ctx) const {
    constexpr int64_t kTogether = 4;
    const int64_t groups = div_up(at.panels(), kTogether), pieces = div_up(at.k1 - at.k0, g_.piece);
    parallel_for(ctx, groups * pieces, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; i++) {
        const Piece of = piece_at(at, at.k0 + i / groups * g_.piece);
        const int64_t first = i % groups * kTogether, n = at.n0 + first * packed::kPanel;
        const int64_t cols = std::min(kTogether * packed::kPanel, at.n1 - n);
        if (p_.trans_b)
          run_.pack_b_transposed(b_.at(n, of.k0), b_.row, cols, of.depth, panel(at, of, first));
        else
          run_.pack_b(b_.at(of.k0, n), b_.row, cols, of.depth, panel(at, of, first));
      }
    });
  }

  void take_tasks(const Block& at, std::atomic<int64_t>& next, float* packed) const {
    for (int64_t row = next.load(std::memory_order_relaxed); row < g_.m;) {
      const int64_t rows = g_.rows_of_task(row);
      if (!next.compare_exchange_weak(row, row + rows, std::memory_order_relaxed)) continue;
      task(at, row, rows, packed);
      row = next.load(std::memory_order_relaxed);
    }
  }

  void task(const Block& at, int64_t m, int64_t rows, float* packed) const {
    packed::Panel t;
    t.a = packed, t.rows = rows, t.ld_c = c_.row;
    for (int64_t k = at.k0; k < at.k1; k += g_.piece) {
      const Piece of = piece_at(at, k);
      if (p_.trans_a)
        run_.pack_a_transposed(a_.at(k, m), a_.row, rows, of.depth, packed);
      else
        run_.pack_a(a_.at(m, k), a_.row, rows, of.depth, packed);
      const bool last = k + of.depth == g_.k;
      t.steps = of.steps, t.add = k > 0 || p_.accumulate;
      for (int64_t n = at.n0; n < at.n1; n += packed::kPanel) {
        // Strips that end above this panel's first diagonal element are left out.
        const int64_t above = lower_ ? std::max<int64_t>(0, n - m) / packed::kStrip : 0;
        const int64_t skipped = above * packed::kStrip;
        if (skipped >= rows) break;
        t.a = packed + above * packed::strip_floats(of.steps);
        t.rows = rows - skipped;
        t.b = panel(at, of, (n - at.n0) / packed::kPanel), t.cols = std::min(packed::kPanel, at.n1 - n),
        t.c = c_.at(m + skipped, n);
        t.more = n + packed::kPanel < at.n1 || k + g_.piece < at.k1;
        if (last && p_.bias) t.bias = p_.bias.as<float>() + n;
        if (last && p_.residual) {
          t.residual = residual_.at(m + skipped, n);
          t.ld_residual = residual_.row;
        }
        run_.multiply(t);
      }
    }
  }

  const bool lower_;
  const MatmulArgs& p_;
  const PackedBlocks& g_;
  const packed::Kernels& run_;
  const FloatGrid a_, b_, c_, residual_;
  float *const panels_, *const rows_;
};

}  // namespace

int64_t packed_matmul_scratch_bytes(const MatmulArgs& p, const Context& ctx) {
  return PackedBlocks(p, ctx).bytes();
}

void packed_matmul(const MatmulArgs& p, std::byte* scratch, const Context& ctx, bool lower) {
  const PackedBlocks g(p, ctx);
  PackedProduct(p, g, scratch, lower).run(ctx);
}

}  // namespace trireme::cpu
