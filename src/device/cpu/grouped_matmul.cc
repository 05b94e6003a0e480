#include "device/cpu/grouped_matmul.h"

#include <atomic>
#include <cstring>

#include "base/rounding.h"
#include "device/cpu/gemm.h"
#include "device/cpu/matmul.h"

namespace trireme::cpu {
namespace {

constexpr int64_t kTaskRows = 1536;  // packing a panel costs as much as some 18 rows
constexpr int64_t kTaskSums = 384;   // rows of dw
// Tasks a thread and more: what the last one costs is waited for by the others. In tile registers products
// take less beside packing the rows, which every task of an expert does.
int64_t tasks_a_thread(DType type) {
  return type == DType::bf16 ? 8 : 12;
}

const Context kAlone{};

Tensor expert(const Tensor& w, int64_t e) {
  Tensor t = w.narrow(0, e, 1);
  return Tensor(t.data, {w.shape[1], w.shape[2]}, w.dtype);
}
// Rows [begin, end) of e. They come from memory: what a kernel follows is checked.
Range rows_of_expert(const Tensor& offsets, int64_t e, int64_t rows) {
  const int32_t* o = offsets.as<int32_t>();
  if (o[e] < 0 || o[e] > o[e + 1] || o[e + 1] > rows)
    run_failed("grouped matmul: rows [{}, {}) of expert {} are no part of [0, {})", o[e], o[e + 1], e, rows);
  return {o[e], o[e + 1]};
}
void check_rows(const Tensor& offsets, int64_t rows) {
  for (int64_t e = 0; e + 1 < offsets.numel(); e++) rows_of_expert(offsets, e, rows);
}

MatmulArgs product(const GroupedMatmulArgs& p, int64_t e, Range rows, Range cols) {
  return {.a = p.x.narrow(0, rows.begin, rows.size()),
          .b = expert(p.w, e).narrow(p.trans_w ? 0 : 1, cols.begin, cols.size()),
          .c = p.y.narrow(0, rows.begin, rows.size()).narrow(1, cols.begin, cols.size()),
          .trans_b = p.trans_w};
}
MatmulArgs product(const GroupedMatmulWeightArgs& p, int64_t e, Range rows, Range outs) {
  return {.a = p.dy.narrow(0, rows.begin, rows.size()).narrow(1, outs.begin, outs.size()),
          .b = p.x.narrow(0, rows.begin, rows.size()),
          .c = expert(p.dw, e).narrow(0, outs.begin, outs.size()),
          .trans_a = true,
          .accumulate = p.accumulate};
}

// ---- tasks for our own product ----

// Does it take problems of these types here? (One of a size that it always takes.)
bool own_product(DType in, DType out) {
  auto* somewhere = reinterpret_cast<std::byte*>(64);
  const Tensor a(somewhere, {64, 64}, in), c(somewhere, {64, 64}, out);
  return takes_own_matmul({.a = a, .b = a, .c = c}, kAlone);
}

struct Tasks {
  int64_t rows, cols;  // of a task, at most; of the weights' gradient rows of dw and all columns
};
Tasks tasks_of(const GroupedMatmulArgs& p, const Context& ctx) {
  const int64_t panel = own_matmul_panel(p.x.dtype), panels = div_up(p.y.shape[1], panel);
  const int64_t each =
      std::clamp<int64_t>(p.w.shape[0] * panels / (tasks_a_thread(p.x.dtype) * ctx.threads), 1, panels);
  return {std::min(p.x.shape[0], kTaskRows), std::min(each * panel, p.y.shape[1])};
}
Tasks tasks_of(const GroupedMatmulWeightArgs& p, const Context& ctx) {
  const int64_t outs = p.dw.shape[1];
  int64_t each = round_up(outs * p.dw.shape[0] / (tasks_a_thread(p.x.dtype) * ctx.threads), 8 * gemm::kStrip);
  each = std::clamp<int64_t>(each, kTaskSums / 2, kTaskSums);
  return {std::min(each, outs), p.dw.shape[2]};
}

// Of a thread: the largest task's.
int64_t task_scratch(const GroupedMatmulArgs& p, const Tasks& t) {
  GroupedMatmulArgs all = p;
  auto bytes = [&](int64_t rows) {
    const MatmulArgs m = product(all, 0, {0, rows}, {0, t.cols});
    return has_few_rows(m) ? matmul_few_rows_scratch_bytes(m) : own_matmul_scratch_bytes(m, kAlone);
  };
  return round_up(std::max(bytes(t.rows), bytes(std::min(t.rows, kFewRows))), 64);
}
int64_t task_scratch(const GroupedMatmulWeightArgs& p, const Tasks& t) {
  const MatmulArgs m = product(p, 0, {0, p.x.shape[0]}, {0, t.rows});
  return round_up(own_matmul_most_scratch_bytes(m, kAlone), 64);
}

void run(const MatmulArgs& m, std::byte* scratch, int64_t c_bytes) {
  if (has_few_rows(m))
    matmul_few_rows(m, scratch, kAlone);
  else
    own_matmul(m, scratch, kAlone, c_bytes);
}

// f(thread, expert, piece) for every piece [0, pieces(e)) of every expert, taken in turn.
template <class Pieces, class F>
void take_in_turn(const Context& ctx, int64_t experts, const Pieces& pieces, const F& f) {
  std::atomic<int64_t> turn = 0;
  parallel_for(ctx, ctx.threads, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t thread = begin; thread < end; thread++) {
      int64_t e = 0, first = 0, of_e = pieces(0);
      for (int64_t t; (t = turn.fetch_add(1, std::memory_order_relaxed)), true;) {
        while (e < experts && t >= first + of_e) {
          first += of_e;
          of_e = ++e < experts ? pieces(e) : 0;
        }
        if (e == experts) break;
        f(thread, e, t - first);
      }
    }
  });
}

void by_tasks(const GroupedMatmulArgs& p, std::byte* scratch, const Context& ctx) {
  const Tasks t = tasks_of(p, ctx);
  const int64_t bytes = task_scratch(p, t), cols = p.y.shape[1], strips = (cols + t.cols - 1) / t.cols;
  const int32_t* o = p.offsets.as<int32_t>();
  auto pieces = [&](int64_t e) { return (o[e + 1] - o[e] + t.rows - 1) / t.rows * strips; };
  take_in_turn(ctx, p.w.shape[0], pieces, [&](int64_t thread, int64_t e, int64_t piece) {
    const int64_t row = o[e] + piece / strips * t.rows, col = piece % strips * t.cols;
    run(product(p, e, {row, std::min<int64_t>(row + t.rows, o[e + 1])}, {col, std::min(col + t.cols, cols)}),
        scratch + thread * bytes, p.y.bytes());
  });
}
void by_tasks(const GroupedMatmulWeightArgs& p, std::byte* scratch, const Context& ctx) {
  const Tasks t = tasks_of(p, ctx);
  const int64_t bytes = task_scratch(p, t), outs = p.dw.shape[1];
  const int32_t* o = p.offsets.as<int32_t>();
  auto pieces = [&](int64_t e) { return o[e + 1] > o[e] ? (outs + t.rows - 1) / t.rows : 0; };
  take_in_turn(ctx, p.dw.shape[0], pieces, [&](int64_t thread, int64_t e, int64_t piece) {
    const int64_t first = piece * t.rows;
    own_matmul(product(p, e, {o[e], o[e + 1]}, {first, std::min(first + t.rows, outs)}),
               scratch + thread * bytes, kAlone, p.dw.bytes());
  });
}

// ---- blocks of powers of two for the matrix library ----

int64_t block_of(int64_t rows) {
  int64_t b = 1;
  while (2 * b <= rows) b *= 2;
  return b;
}
// f(begin, end) for each.
template <class F>
void each_block(Range rows, const F& f) {
  for (int64_t at = rows.begin; at < rows.end;) {
    const int64_t n = block_of(rows.end - at);
    f(Range{at, at + n});
    at += n;
  }
}
// The weights' gradient of one expert and block of rows, into f32 [N, K].
MatmulArgs block_sum(const GroupedMatmulWeightArgs& p, Range rows, std::byte* sum, bool first) {
  MatmulArgs m = product(p, 0, rows, {0, p.dw.shape[1]});
  m.c = Tensor(sum, {p.dw.shape[1], p.dw.shape[2]}, DType::f32);
  m.accumulate = !first;
  return m;
}
int64_t block_sum_bytes(const GroupedMatmulWeightArgs& p) {
  return round_up(p.dw.shape[1] * p.dw.shape[2] * int64_t(sizeof(float)), 64);
}
Tensor rest_of(const Tensor& scratch, int64_t from) {
  return scratch.numel() > from ? Tensor(scratch.data + from, {scratch.numel() - from}, DType::u8) : Tensor();
}

void zero_rest(const GroupedMatmulArgs& p) {
  const int64_t end = p.offsets.as<int32_t>()[p.w.shape[0]], size = size_of(p.y.dtype);
  for (int64_t r = end; r < p.y.shape[0]; r++)
    std::memset(p.y.data + r * p.y.stride[0] * size, 0, size_t(p.y.shape[1] * size));
}
void zero_unused(const GroupedMatmulWeightArgs& p) {
  const int32_t* o = p.offsets.as<int32_t>();
  for (int64_t e = 0; e < p.dw.shape[0] && !p.accumulate; e++)
    if (o[e] == o[e + 1]) std::memset(expert(p.dw, e).data, 0, size_t(expert(p.dw, e).bytes()));
}

}  // namespace

int64_t grouped_by_blocks_scratch_bytes(const GroupedMatmulArgs& p, const Context& ctx) {
  int64_t bytes = 0;
  for (int64_t n = 1; n <= p.x.shape[0]; n *= 2)
    bytes = std::max(bytes, scratch_bytes(product(p, 0, {0, n}, {0, p.y.shape[1]}), ctx));
  return bytes;
}
void grouped_by_blocks(const GroupedMatmulArgs& p, const Tensor& scratch, const Context& ctx) {
  for (int64_t e = 0; e < p.w.shape[0]; e++)
    each_block(rows_of_expert(p.offsets, e, p.x.shape[0]), [&](Range rows) {
      launch(product(p, e, rows, {0, p.y.shape[1]}), scratch, ctx);
    });
}

int64_t grouped_by_blocks_scratch_bytes(const GroupedMatmulWeightArgs& p, const Context& ctx) {
  auto* somewhere = reinterpret_cast<std::byte*>(64);
  int64_t bytes = 0;
  for (int64_t n = 1; n <= p.x.shape[0]; n *= 2)
    for (bool first : {true, false})
      bytes = std::max(bytes, scratch_bytes(block_sum(p, {0, n}, somewhere, first), ctx));
  return block_sum_bytes(p) + bytes;
}
// The sum, then dw (+)= it with one rounding: by add where dw is added to, else by cast.
void grouped_by_blocks(const GroupedMatmulWeightArgs& p, const Tensor& scratch, const Context& ctx) {
  const Tensor rest = rest_of(scratch, block_sum_bytes(p));
  for (int64_t e = 0; e < p.dw.shape[0]; e++) {
    const Range all = rows_of_expert(p.offsets, e, p.x.shape[0]);
    if (all.size() == 0) continue;
    each_block(all, [&](Range rows) {
      launch(block_sum(p, rows, scratch.data, rows.begin == all.begin), rest, ctx);
    });
    const Tensor to = expert(p.dw, e), sum(scratch.data, to.shape, DType::f32);
    if (p.accumulate)
      launch(AddArgs{.a = to, .b = sum, .y = to}, Tensor(), ctx);
    else
      launch(CastArgs{.src = sum, .dst = to}, Tensor(), ctx);
  }
}

int64_t scratch_bytes(const GroupedMatmulArgs& p, const Context& ctx) {
  if (p.y.numel() == 0) return 0;
  if (!own_product(p.x.dtype, p.y.dtype)) return grouped_by_blocks_scratch_bytes(p, ctx);
  return ctx.threads * task_scratch(p, tasks_of(p, ctx));
}
void launch(const GroupedMatmulArgs& p, const Tensor& scratch, const Context& ctx) {
  if (p.y.numel() == 0) return;
  check_rows(p.offsets, p.x.shape[0]);
  if (own_product(p.x.dtype, p.y.dtype))
    by_tasks(p, scratch.data, ctx);
  else
    grouped_by_blocks(p, scratch, ctx);
  zero_rest(p);
}

int64_t scratch_bytes(const GroupedMatmulWeightArgs& p, const Context& ctx) {
  if (p.dw.numel() == 0 || p.x.shape[0] == 0) return 0;
  if (!own_product(p.x.dtype, p.dw.dtype)) return grouped_by_blocks_scratch_bytes(p, ctx);
  return ctx.threads * task_scratch(p, tasks_of(p, ctx));
}
void launch(const GroupedMatmulWeightArgs& p, const Tensor& scratch, const Context& ctx) {
  if (p.dw.numel() == 0) return;
  check_rows(p.offsets, p.x.shape[0]);
  zero_unused(p);
  if (p.x.shape[0] == 0) return;
  if (own_product(p.x.dtype, p.dw.dtype))
    by_tasks(p, scratch.data, ctx);
  else
    grouped_by_blocks(p, scratch, ctx);
}

}  // namespace trireme::cpu
