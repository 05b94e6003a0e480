// Rows of a table by id, and the sum of gradients back into the table.
//
// Backward: a counting sort lists, for each id, the rows of dy that used it, in ascending order (O(N + V),
// one thread). Threads then split the columns, so that one frequent id cannot keep a single thread busy; each
// sums a stripe of 8 vectors over an id's list in registers, f32, and rounds once per element. Order and bits
// do not depend on the thread count. Traffic: dy once, dtable written once (read too when accumulating).
#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/embedding.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/indices.h"
#include "device/cpu/launch.h"
#include "device/cpu/rows.h"
#include "device/cpu/simd-inl.h"

namespace trireme::cpu {
#ifndef TRIREME_DEVICE_CPU_IDS_SORTED
#define TRIREME_DEVICE_CPU_IDS_SORTED
// order[i] for i in [end[id - 1], end[id]) are the places of `id`, ascending (end[-1] = 0).
struct SortedIds {
  const int32_t *end, *order;
};
#endif
}  // namespace trireme::cpu

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

template <class T>
void gather(const EmbeddingArgs& a, int64_t begin, int64_t end) {
  const Rows<const T> table = rows_of<const T>(a.table);
  const Rows<T> y = rows_of<T>(a.y);
  const int32_t* ids = a.ids.as<int32_t>();
  const int64_t cols = a.table.shape[1];
  for (int64_t n = begin; n < end; n++) {
    T* to = y[n];
    const int64_t row = ids[n] - a.first;
    if (row < 0 || row >= a.table.shape[0]) {  // another part of the table has it
      if (!a.accumulate) std::memset(static_cast<void*>(to), 0, size_t(cols) * sizeof(T));
      continue;
    }
    const T* from = table[row];
    if (!a.accumulate) {
      std::memcpy(static_cast<void*>(to), from, size_t(cols) * sizeof(T));
      continue;
    }
    each_vector(cols, [&](int64_t c, auto part) HWY_ATTR {
      store(hn::Add(load(to + c, part), load(from + c, part)), to + c, part);
    });
  }
}

// Columns [c, c + width) of one id's row: V whole vectors, or one partial.
template <int V, class Part, class T, class D>
HWY_INLINE void sum_stripe(const Rows<const T>& dy, const int32_t* places, int64_t count, D* out, int64_t c,
                           bool accumulate, Part part) {
  VF s[V];
  for (int v = 0; v < V; v++) s[v] = fill(0);
  for (int64_t i = 0; i < count; i++) {
    const T* row = dy[places[i]] + c;
    for (int v = 0; v < V; v++) s[v] = hn::Add(s[v], load(row + v * kLanes, part));
  }
  for (int v = 0; v < V; v++) {
    D* to = out + c + v * kLanes;
    store(accumulate ? hn::Add(load(to, part), s[v]) : s[v], to, part);
  }
}

template <class T, class D>
void scatter(const EmbeddingBackwardArgs& a, const SortedIds& ids, int64_t begin, int64_t end) {
  const Rows<const T> dy = rows_of<const T>(a.dy);
  const Rows<D> table = rows_of<D>(a.dtable);
  for (int64_t id = 0; id < a.dtable.shape[0]; id++) {
    const int32_t first = id ? ids.end[id - 1] : 0, count = ids.end[id] - first;
    const int32_t* places = ids.order + first;
    D* out = table[id];
    if (count == 0) {
      if (!a.accumulate) std::memset(static_cast<void*>(out + begin), 0, size_t(end - begin) * sizeof(D));
      continue;
    }
    int64_t c = begin;
    for (; c + 8 * kLanes <= end; c += 8 * kLanes)
      sum_stripe<8>(dy, places, count, out, c, a.accumulate, Whole());
    for (; c + kLanes <= end; c += kLanes) sum_stripe<1>(dy, places, count, out, c, a.accumulate, Whole());
    if (c < end) sum_stripe<1>(dy, places, count, out, c, a.accumulate, end - c);
  }
}

}  // namespace

void embedding(const EmbeddingArgs& a, int64_t begin, int64_t end) {
  a.table.dtype == DType::bf16 ? gather<bf16>(a, begin, end) : gather<float>(a, begin, end);
}
void embedding_backward(const EmbeddingBackwardArgs& a, const SortedIds& ids, int64_t begin, int64_t end) {
  if (a.dy.dtype == DType::f32)
    scatter<float, float>(a, ids, begin, end);
  else if (a.dtable.dtype == DType::f32)
    scatter<bf16, float>(a, ids, begin, end);
  else
    scatter<bf16, bf16>(a, ids, begin, end);
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(embedding);
HWY_EXPORT(embedding_backward);

int64_t scratch_bytes(const EmbeddingArgs&, const Context&) {
  return 0;
}
void launch(const EmbeddingArgs& a, const Tensor&, const Context& ctx) {
  require_indices(a.ids, 0, a.vocab ? a.vocab : a.table.shape[0], "embedding: id", "the table has ids");
  parallel_for(ctx, a.ids.numel(), row_grain(a.table.shape[1]), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(embedding)(a, begin, end);
  });
}

int64_t scratch_bytes(const EmbeddingBackwardArgs& a, const Context&) {
  return (a.dtable.shape[0] + a.ids.numel()) * int64_t(sizeof(int32_t));
}
void launch(const EmbeddingBackwardArgs& a, const Tensor& scratch, const Context& ctx) {
  const int64_t n = a.ids.numel(), vocab = a.dtable.shape[0];
  require_indices(a.ids, 0, a.vocab ? a.vocab : vocab, "embedding_backward: id", "the table has ids");
  if (vocab == 0) return;
  int32_t *end = reinterpret_cast<int32_t*>(scratch.data), *order = end + vocab;
  // Counts go one place ahead, so that their prefix sum is where each id's list begins; filling the lists
  // moves every begin to its end.
  std::memset(end, 0, size_t(vocab) * sizeof *end);
  const int32_t* ids = n ? a.ids.as<int32_t>() : nullptr;
  auto each_row = [&](auto&& f) {  // of those that this table has
    for (int64_t i = 0; i < n; i++)
      if (const int64_t row = ids[i] - a.first; row >= 0 && row < vocab) f(row, i);
  };
  each_row([&](int64_t row, int64_t) {
    if (row + 1 < vocab) end[row + 1]++;
  });
  for (int64_t id = 1; id < vocab; id++) end[id] += end[id - 1];
  each_row([&](int64_t row, int64_t i) { order[end[row]++] = int32_t(i); });
  const SortedIds sorted{end, order};
  const int64_t cols = a.dtable.shape[1], lines = n * cols < kGrainElements ? cols : 64;
  parallel_for(ctx, cols, std::max<int64_t>(lines, 1), [&](int64_t begin, int64_t stop, int) {
    HWY_DYNAMIC_DISPATCH(embedding_backward)(a, sorted, begin, stop);
  });
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
