// The loops of our own matrix product (gemm.h), for any element type.
#include "device/cpu/gemm.h"

#include "device/cpu/cpu_device.h"
#include "device/cpu/matmul.h"

namespace trireme::cpu {
namespace {

using gemm::kPanel, gemm::kStrip;

int64_t round_up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}

// Sizes of a problem and of what each thread packs. Scratch: partial sums f32 [M, N] where several blocks of
// K meet in a bf16 c (an f32 c keeps them itself) | for each thread a panel of b | and a block of packed a.
struct Blocks {
  int64_t m, n, k, kc, mc;
  int64_t partial = 0, panel, packed = 0;  // bytes
  int threads;

  Blocks(const MatmulArgs& p, const Context& ctx) : m(rows_of(p)), n(cols_of(p)), k(depth_of(p)) {
    // A panel of b fills less than half of L2 (1 MB on this family); packed a fills the rest.
    int64_t element = size_of(p.a.dtype), most = (p.trans_a ? 2048 : 6144) / element;
    int64_t count = (k + most - 1) / most;
    kc = round_up((k + count - 1) / count, 32);
    mc = p.trans_a ? 384 : round_up(m, kStrip);
    panel = round_up(kc, 32) * kPanel * element;
    if (p.trans_a) packed = round_up(std::min(mc, round_up(m, kStrip)) * round_up(kc, 2) * element + 64, 64);
    if (kc < k && p.c.dtype != DType::f32) partial = round_up(m * n * int64_t(sizeof(float)), 64);
    threads = int(std::min<int64_t>(ctx.threads, (m + kStrip - 1) / kStrip));
  }
  int64_t bytes() const { return partial + threads * (panel + packed); }
};

// Asks L2 for the source of the next panel, a share at each strip, so that packing it does not wait for
// memory.
class Ahead {
 public:
  Ahead(const std::byte* rows, int64_t row, int64_t count, int64_t bytes, int64_t steps)
      : at_(rows),
        row_(row),
        bytes_(bytes),
        left_(count),
        share_((count + steps - 1) / std::max<int64_t>(1, steps)) {}
  void step() {
    for (int64_t n = std::min(share_, left_); n > 0; n--, left_--, at_ += row_)
      for (int64_t b = 0; b < bytes_; b += 64) __builtin_prefetch(at_ + b, 0, 2);
  }

 private:
  const std::byte* at_;
  int64_t row_, bytes_, left_, share_;
};

class Product {
 public:
  Product(const MatmulArgs& p, const Blocks& g, const gemm::Kernels& k, std::byte* scratch)
      : p_(p), g_(g), k_(k), scratch_(scratch) {
    partial_ = reinterpret_cast<float*>(p.c.dtype == DType::f32 ? p.c.data : scratch);
    ld_partial_ = p.c.dtype == DType::f32 ? row_elements(p.c) : g.n;
  }

  // Rows [begin, end) of c.
  void rows(int64_t begin, int64_t end, int thread) {
    std::byte* own = scratch_ + g_.partial + thread * (g_.panel + g_.packed);
    for (int64_t m0 = begin; m0 < end; m0 += g_.mc)
      for (int64_t k0 = 0; k0 < g_.k; k0 += g_.kc)
        block(m0, std::min(end, m0 + g_.mc), k0, std::min(g_.k, k0 + g_.kc), own);
  }

 private:
  static int64_t row_elements(const Tensor& t) { return t.shape[0] > 1 ? t.stride[0] : t.shape[1]; }
  static int64_t row_bytes(const Tensor& t) { return row_elements(t) * size_of(t.dtype); }

  void block(int64_t m0, int64_t m1, int64_t k0, int64_t k1, std::byte* panel) {
    std::byte* packed = panel + g_.panel;
    if (p_.trans_a)
      k_.pack_strips(p_.a.data + k0 * row_bytes(p_.a) + m0 * k_.element, row_bytes(p_.a), m1 - m0, k1 - k0,
                     packed);
    const auto pack = p_.trans_b ? k_.pack_transposed : k_.pack_rows;
    for (int64_t n0 = 0; n0 < g_.n; n0 += kPanel) {
      int64_t cols = std::min(kPanel, g_.n - n0);
      pack(panel_source(n0, k0), row_bytes(p_.b), cols, k1 - k0, panel);
      Ahead next = next_panel(n0 + kPanel, k0, k1, (m1 - m0 + kStrip - 1) / kStrip);
      for (int64_t i = m0; i < m1; i += kStrip) {
        next.step();
        tile({i, std::min(kStrip, m1 - i), n0, cols, k0, k1}, packed + (i - m0) * packed_row(k1 - k0), panel);
      }
    }
  }
  const std::byte* panel_source(int64_t n0, int64_t k0) const {
    return p_.trans_b ? p_.b.data + n0 * row_bytes(p_.b) + k0 * k_.element
                      : p_.b.data + k0 * row_bytes(p_.b) + n0 * k_.element;
  }
  Ahead next_panel(int64_t n0, int64_t k0, int64_t k1, int64_t steps) const {
    int64_t cols = std::clamp<int64_t>(g_.n - n0, 0, kPanel), depth = k1 - k0;
    return {panel_source(n0, k0), row_bytes(p_.b),
            p_.trans_b ? cols
            : cols     ? depth
                       : 0,
            (p_.trans_b ? depth : cols) * k_.element, steps};
  }
  int64_t packed_row(int64_t depth) const { return round_up(depth, k_.group) * k_.element; }

  struct Place {
    int64_t i, rows, n0, cols, k0, k1;
  };
  void tile(const Place& at, const std::byte* packed, const std::byte* panel) {
    alignas(64) float sums[kStrip * kPanel];
    bool first = at.k0 == 0, last = at.k1 == g_.k, whole = at.cols == kPanel;
    float* partial = partial_ + at.i * ld_partial_ + at.n0;
    if (last) prefetch(at);
    gemm::Tile t;
    t.units = (at.k1 - at.k0) / k_.group;
    if (p_.trans_a) {
      t.a = packed, t.a_row = k_.element * k_.group, t.a_step = t.a_row * kStrip;
      t.units = (at.k1 - at.k0 + k_.group - 1) / k_.group;
    } else {
      t.a_row = row_bytes(p_.a), t.a_step = k_.element * k_.group;
      t.a = p_.a.data + at.i * t.a_row + at.k0 * k_.element;
      t.half = (at.k1 - at.k0) % k_.group != 0;
    }
    t.b = panel;
    // Sums go through memory between blocks of K; a narrow last panel keeps to its own columns.
    if (!first) {
      t.from = partial, t.ld_from = ld_partial_;
      if (!whole) {
        copy(partial, ld_partial_, sums, kPanel, at);
        t.from = sums, t.ld_from = kPanel;
      }
    }
    bool direct = !last && whole && !(first && p_.accumulate && p_.c.dtype == DType::f32);
    t.sums = direct ? partial : sums, t.ld_sums = direct ? ld_partial_ : kPanel;
    k_.multiply[at.rows - 1](t);
    if (last)
      finish(at, sums, first);
    else if (!direct)
      keep(at, sums, partial, first);
  }

  // Partial sums of the first blocks of K. An f32 c that is added to holds its old value until then.
  void keep(const Place& at, float* sums, float* partial, bool first) {
    if (first && p_.accumulate && p_.c.dtype == DType::f32)
      for (int64_t r = 0; r < at.rows; r++)
        for (int64_t j = 0; j < at.cols; j++) sums[r * kPanel + j] += partial[r * ld_partial_ + j];
    copy(sums, kPanel, partial, ld_partial_, at);
  }
  static void copy(const float* from, int64_t ld_from, float* to, int64_t ld_to, const Place& at) {
    for (int64_t r = 0; r < at.rows; r++) std::copy_n(from + r * ld_from, at.cols, to + r * ld_to);
  }

  void finish(const Place& at, const float* sums, bool first) {
    gemm::Finish f;
    f.sums = sums, f.ld_sums = kPanel, f.rows = at.rows, f.cols = at.cols;
    f.c_row = row_bytes(p_.c);
    f.c = p_.c.data + at.i * f.c_row + at.n0 * size_of(p_.c.dtype);
    if (p_.bias) f.bias = p_.bias.data + at.n0 * k_.element;
    if (p_.residual) {
      f.residual_row = row_bytes(p_.residual);
      f.residual = p_.residual.data + at.i * f.residual_row + at.n0 * size_of(p_.c.dtype);
    }
    f.accumulate = p_.accumulate && (first || p_.c.dtype != DType::f32);
    (p_.c.dtype == p_.a.dtype ? k_.finish_same : k_.finish_f32)(f);
  }

  // What the epilogue reads and writes is asked for before the sums begin: its rows lie far apart, which no
  // hardware foresees.
  void prefetch(const Place& at) const {
    auto ask = [&](const Tensor& t, auto write) {
      const std::byte* line = t.data + at.i * row_bytes(t) + at.n0 * size_of(t.dtype);
      for (int64_t r = 0; r < at.rows; r++, line += row_bytes(t))
        for (int64_t b = 0; b < at.cols * size_of(t.dtype); b += 64) __builtin_prefetch(line + b, write(), 3);
    };
    ask(p_.c, [] { return 1; });
    if (p_.residual) ask(p_.residual, [] { return 0; });
  }

  const MatmulArgs& p_;
  const Blocks& g_;
  const gemm::Kernels& k_;
  std::byte* scratch_;
  float* partial_;
  int64_t ld_partial_;
};

}  // namespace

bool takes_own_matmul(const MatmulArgs& p, const Context& ctx) {
  static const bool able = multiplies_natively(DType::bf16) && gemm::kernels(DType::bf16) != nullptr;
  if (!able || !gemm::kernels(p.a.dtype)) return false;
  // An f32 c that holds partial sums cannot at the same time be the residual.
  if (p.residual && p.residual.data == p.c.data) return false;
  return rows_of(p) >= 24 * ctx.threads && cols_of(p) >= 48 && depth_of(p) >= 32;
}

int64_t own_matmul_scratch_bytes(const MatmulArgs& p, const Context& ctx) {
  return Blocks(p, ctx).bytes();
}

void own_matmul(const MatmulArgs& p, std::byte* scratch, const Context& ctx) {
  Blocks g(p, ctx);
  Product product(p, g, *gemm::kernels(p.a.dtype), scratch);
  parallel_for(ctx, g.m, kStrip,
               [&](int64_t begin, int64_t end, int thread) { product.rows(begin, end, thread); });
}

}  // namespace trireme::cpu
