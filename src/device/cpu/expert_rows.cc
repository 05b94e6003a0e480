// Rows of tokens to rows of experts and back (ops.h): a counting sort of the choices, a gather, and a
// weighted sum of k rows a token. Each output row has one writer, so no thread count changes a bit. Traffic:
// each row of x read once and of y written once.
#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/expert_rows.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/indices.h"
#include "device/cpu/launch.h"
#include "device/cpu/rows.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

template <class T>
void combine(const CombineRowsArgs& a, int64_t begin, int64_t end) {
  const Rows<const T> x = rows_of<const T>(a.x), add = rows_of<const T>(a.add);
  const Rows<T> y = rows_of<T>(a.y);
  const int64_t k = a.place.shape[1], cols = a.x.shape[1];
  const float* weights = a.weights ? a.weights.as<float>() : nullptr;
  for (int64_t n = begin; n < end; n++) {
    const int32_t* place = a.place.as<int32_t>() + n * k;
    each_vector(cols, [&](int64_t c, auto part) HWY_ATTR {
      VF s = add ? load(add[n] + c, part) : fill(0);
      for (int64_t j = 0; j < k; j++)
        if (place[j] >= 0)
          s = hn::MulAdd(fill(weights ? weights[n * k + j] : 1), load(x[place[j]] + c, part), s);
      store(s, y[n] + c, part);
    });
  }
}

template <class T>
void combine_backward(const CombineRowsBackwardArgs& a, int64_t begin, int64_t end) {
  const Rows<const T> x = rows_of<const T>(a.x), dy = rows_of<const T>(a.dy);
  const Rows<T> dx = rows_of<T>(a.dx);
  const int64_t k = a.place.shape[1], cols = a.x.shape[1];
  const float* weights = a.weights.as<float>();
  float* dweights = a.dweights.as<float>();
  for (int64_t i = begin * k; i < end * k; i++) {
    const int32_t r = a.place.as<int32_t>()[i];
    VF dot = fill(0);
    if (r >= 0) {
      const T* from = dy[i / k];
      const VF w = fill(weights[i]);
      each_vector(cols, [&](int64_t c, auto part) HWY_ATTR {
        const VF d = load(from + c, part);
        dot = hn::MulAdd(d, load(x[r] + c, part), dot);
        store(hn::Mul(w, d), dx[r] + c, part);
      });
    }
    dweights[i] = sum(dot);
  }
}

}  // namespace

void combine_rows(const CombineRowsArgs& a, int64_t begin, int64_t end) {
  a.x.dtype == DType::bf16 ? combine<bf16>(a, begin, end) : combine<float>(a, begin, end);
}
void combine_rows_backward(const CombineRowsBackwardArgs& a, int64_t begin, int64_t end) {
  a.x.dtype == DType::bf16 ? combine_backward<bf16>(a, begin, end) : combine_backward<float>(a, begin, end);
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(combine_rows);
HWY_EXPORT(combine_rows_backward);

int64_t scratch_bytes(const RouteOrderArgs& a, const Context&) {
  return 2 * a.load.numel() * int64_t(sizeof(int32_t));
}
void launch(const RouteOrderArgs& a, const Tensor& scratch, const Context&) {
  const int64_t experts = a.load.numel(), k = a.ids.shape[1], choices = a.ids.numel();
  require_indices(a.ids, -experts, experts, "route_order: expert", "there are");
  int32_t *taken = reinterpret_cast<int32_t*>(scratch.data), *next = taken + experts;
  int32_t *load = a.load.as<int32_t>(), *offsets = a.offsets.as<int32_t>(), *place = a.place.as<int32_t>(),
          *source = a.source.as<int32_t>();
  const int32_t* ids = a.ids.as<int32_t>();
  std::fill_n(taken, 2 * experts, 0);
  std::fill_n(load, experts, 0);
  for (int64_t i = 0; i < choices; i++) {
    if (a.capacity > 0 && i % (a.unit * k) == 0) std::fill_n(taken, experts, 0);
    const bool without = ids[i] < 0;  // a row
    const int32_t e = without ? -1 - ids[i] : ids[i];
    load[e]++;
    place[i] = without || (a.capacity > 0 && taken[e]++ >= a.capacity) ? -1 : 0;
    next[e] += place[i] == 0;
  }
  offsets[0] = 0;
  for (int64_t e = 0; e < experts; e++) {
    offsets[e + 1] = offsets[e] + next[e];
    next[e] = offsets[e];
  }
  for (int64_t i = 0; i < choices; i++) {
    if (place[i] < 0) continue;
    place[i] = next[ids[i]]++;
    source[place[i]] = int32_t(i);
  }
  std::fill(source + offsets[experts], source + choices, -1);
}

int64_t scratch_bytes(const PermuteRowsArgs&, const Context&) {
  return 0;
}
void launch(const PermuteRowsArgs& a, const Tensor&, const Context& ctx) {
  const int64_t rows = a.source.numel(), n = a.x.shape[0], size = size_of(a.x.dtype);
  if (rows == 0) return;
  require_indices(a.source, -1, rows, "permute_rows: source", "choices are -1 (none) or");
  const int64_t k = rows / n, bytes = a.x.shape[1] * size;
  const int32_t* source = a.source.as<int32_t>();
  parallel_for(ctx, rows, row_grain(a.x.shape[1]), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; r++) {
      std::byte* to = a.y.data + r * a.y.stride[0] * size;
      if (source[r] < 0)
        std::memset(to, 0, size_t(bytes));
      else
        std::memcpy(to, a.x.data + source[r] / k * a.x.stride[0] * size, size_t(bytes));
    }
  });
}

int64_t scratch_bytes(const CombineRowsArgs&, const Context&) {
  return 0;
}
void launch(const CombineRowsArgs& a, const Tensor&, const Context& ctx) {
  require_indices(a.place, -1, a.x.shape[0], "combine_rows: place", "rows are -1 (none) or");
  parallel_for(ctx, a.place.shape[0], row_grain(a.x.shape[1] * a.place.shape[1]),
               [&](int64_t begin, int64_t end, int) {
                 HWY_DYNAMIC_DISPATCH(combine_rows)
                 (a, begin, end);
               });
}

int64_t scratch_bytes(const CombineRowsBackwardArgs&, const Context&) {
  return 0;
}
void launch(const CombineRowsBackwardArgs& a, const Tensor&, const Context& ctx) {
  require_indices(a.place, -1, a.x.shape[0], "combine_rows_backward: place", "rows are -1 (none) or");
  parallel_for(ctx, a.place.shape[0], row_grain(a.x.shape[1] * a.place.shape[1]),
               [&](int64_t begin, int64_t end, int) {
                 HWY_DYNAMIC_DISPATCH(combine_rows_backward)(a, begin, end);
               });
  const int64_t size = size_of(a.dx.dtype);
  const int32_t* source = a.source.as<int32_t>();
  for (int64_t r = a.source.numel(); r-- > 0 && source[r] < 0;)
    std::memset(a.dx.data + r * a.dx.stride[0] * size, 0, size_t(a.dx.shape[1] * size));
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
