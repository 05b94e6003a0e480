// Where each choice's row lies (ops.h): a counting sort of choices by expert that keeps their order.
//
// A block an expert walks all choices of a unit in order, 256 at a time, and numbers its own by a prefix sum;
// counts first, then offsets in one block, then places. E n k integer comparisons twice (E = 256, 65,536
// choices: 34 million); ids from caches. No atomics.
#include "device/cuda/indices.h"
#include "device/cuda/reduce.cuh"

namespace trireme::cuda {
namespace {

constexpr int kOrderThreads = 256;

struct Choices {
  const int32_t* ids;
  int64_t n, unit;   // choices in all and of a unit
  int64_t capacity;  // of an expert in a unit; unit is n where there is none
};

// Sum of flags of the threads before this one; total: of all.
__device__ __forceinline__ int32_t flags_before(bool flag, int32_t& total) {
  __shared__ int32_t of_warp[kOrderThreads / 32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned set = __ballot_sync(kAllLanes, flag);
  if (lane == 0) of_warp[warp] = __popc(set);
  __syncthreads();
  int32_t before = __popc(set & ((1u << lane) - 1));
  total = 0;
  for (unsigned w = 0; w < kOrderThreads / 32; w++) {
    if (w < warp) before += of_warp[w];
    total += of_warp[w];
  }
  __syncthreads();
  return before;
}

// f(choice, whether it is this expert's, its number among the expert's rows or -1) for every choice, by the
// threads of the expert's block; returns how many rows the expert has.
template <class F>
__device__ __forceinline__ int32_t each_choice(const Choices& c, int32_t expert, const F& f) {
  int32_t rows = 0;
  for (int64_t begin = 0; begin < c.n; begin += c.unit) {
    const int64_t end = begin + c.unit < c.n ? begin + c.unit : c.n;
    int64_t taken = 0;
    for (int64_t at = begin; at < end; at += kOrderThreads) {
      const int64_t i = at + threadIdx.x;
      const int32_t id = i < end ? c.ids[i] : INT_MIN;
      int32_t total;
      const int64_t number = taken + flags_before(id == expert, total);
      const bool has_row = id == expert && (c.capacity == 0 || number < c.capacity);
      f(i, id == expert || id == -1 - expert, has_row ? rows + int32_t(number) : -1);
      taken += total;
    }
    rows += int32_t(c.capacity > 0 && taken > c.capacity ? c.capacity : taken);
  }
  return rows;
}

__global__ void __launch_bounds__(kOrderThreads) count_choices(Choices c, int32_t* load, int32_t* rows) {
  const int32_t expert = int32_t(blockIdx.x);
  int32_t own = 0;
  const int32_t with_row = each_choice(c, expert, [&](int64_t, bool mine, int32_t) { own += mine; });
  own = block_sum(own);
  if (threadIdx.x == 0) load[expert] = own, rows[expert] = with_row;
}

__global__ void sum_offsets(const int32_t* rows, int32_t* offsets, int64_t experts) {
  if (threadIdx.x > 0) return;
  offsets[0] = 0;
  for (int64_t e = 0; e < experts; e++) offsets[e + 1] = offsets[e] + rows[e];
}

__global__ void __launch_bounds__(kOrderThreads)
    place_choices(Choices c, const int32_t* offsets, int32_t* place, int32_t* source) {
  const int32_t expert = int32_t(blockIdx.x), first = offsets[expert];
  each_choice(c, expert, [&](int64_t i, bool mine, int32_t number) {
    if (!mine) return;
    place[i] = number < 0 ? -1 : first + number;
    if (number >= 0) source[first + number] = int32_t(i);
  });
}

__global__ void __launch_bounds__(kOrderThreads)
    clear_sources(const int32_t* used, int32_t* source, int64_t n) {
  const int64_t i = int64_t(blockIdx.x) * kOrderThreads + threadIdx.x;
  if (i < n && i >= *used) source[i] = -1;
}

}  // namespace

void cuda_launch(const RouteOrderArgs& a, const Tensor& scratch, CudaContext& ctx, cudaStream_t stream) {
  const int64_t experts = a.load.numel(), n = a.ids.numel();
  check_indices(a.ids, -experts, experts, "route_order: expert", "there are", ctx, stream);
  int32_t* rows = reinterpret_cast<int32_t*>(scratch.data);
  int32_t *load = a.load.as<int32_t>(), *offsets = a.offsets.as<int32_t>(), *source = a.source.as<int32_t>();
  const Choices c{a.ids.as<int32_t>(), n, a.capacity > 0 ? a.unit * a.ids.shape[1] : n, a.capacity};
  set_bytes(a.place.data, 0xff, a.place.bytes(), stream);  // -1, also of ids that are out of range
  run_blocks(count_choices, experts, kOrderThreads, 0, stream, c, load, rows);
  run_blocks(sum_offsets, 1, 32, 0, stream, rows, offsets, experts);
  run_blocks(clear_sources, ceil_div(n, kOrderThreads), kOrderThreads, 0, stream, offsets + experts, source,
             n);
  run_blocks(place_choices, experts, kOrderThreads, 0, stream, c, offsets, a.place.as<int32_t>(), source);
}

}  // namespace trireme::cuda
