// A look at ids: each kind of check has a slot of 8 bytes on the device, all ones while nothing was found,
// which takes the least of (place << 32 | id): a minimum of integers, the same in any order. A kind keeps its
// slot, so that a launch that is kept (device/graphs.h) writes where it is looked for; kinds of no kept
// launch (rows of experts, another number each step) give theirs back when there are no more. Traffic: 4 B an
// id.
#include "device/cuda/indices.h"

#include <algorithm>

#include "device/cuda/gpu.cuh"

namespace trireme::cuda {
namespace {

constexpr int kIndexThreads = 256;
constexpr uint64_t kNothing = ~uint64_t(0);

__global__ void find_bad_index(const int32_t* ids, int64_t n, int64_t low, int64_t high,
                               unsigned long long* slot) {
  const int64_t i = int64_t(blockIdx.x) * kIndexThreads + threadIdx.x;
  if (i >= n || (ids[i] >= low && ids[i] < high)) return;
  atomicMin(slot, (unsigned long long)(i) << 32 | uint32_t(ids[i]));
}

// The kind's slot; -1 = none is left.
int64_t slot_of(const IndexCheck& check, CudaContext& ctx) {
  std::vector<IndexCheck>& all = ctx.index_checks;
  auto at = std::find(all.begin(), all.end(), check);
  if (at == all.end()) at = std::find(all.begin(), all.end(), IndexCheck{});
  if (at == all.end()) {
    if (int64_t(all.size()) == CudaContext::kIndexSlots) return -1;
    at = all.emplace(all.end()), ctx.index_kept.push_back(0);
  }
  *at = check;
  return at - all.begin();
}

}  // namespace

void free_index_slots(CudaContext& ctx, cudaStream_t stream) {
  raise_bad_indices(ctx, stream);
  for (size_t i = 0; i < ctx.index_checks.size(); i++)
    if (!ctx.index_kept[i]) ctx.index_checks[i] = {};
}

void check_indices(const Tensor& ids, int64_t low, int64_t high, std::string_view what,
                   std::string_view range, CudaContext& ctx, cudaStream_t stream) {
  const int64_t n = ids.numel();
  if (n == 0) return;
  require(ctx.index_slots != nullptr && n <= INT32_MAX, "ids that no slot of a device can name");
  const IndexCheck check{what, range, low, high};
  int64_t i = slot_of(check, ctx);
  if (i < 0 && !ctx.capturing) free_index_slots(ctx, stream), i = slot_of(check, ctx);
  if (i < 0)
    run_failed("{}: graphs look at more than {} kinds of ids; run without them (train.graphs = \"off\")",
               what, CudaContext::kIndexSlots);
  auto* slot = reinterpret_cast<unsigned long long*>(ctx.index_slots + i);
  if (ctx.capturing) ctx.index_kept[size_t(i)] = 1;
  ctx.index_checked = true;
  run_blocks(find_bad_index, ceil_div(n, kIndexThreads), kIndexThreads, 0, stream, ids.as<int32_t>(), n, low,
             high, slot);
}

void raise_bad_indices(CudaContext& ctx, cudaStream_t stream) {
  if (!ctx.index_checked) return finish(stream);
  ctx.index_found.resize(ctx.index_checks.size());
  const int64_t bytes = int64_t(ctx.index_checks.size() * sizeof(uint64_t));
  copy_bytes(ctx.index_found.data(), ctx.index_slots, bytes, stream);
  set_bytes(ctx.index_slots, 0xff, bytes, stream);
  finish(stream);
  ctx.index_checked = false;
  const std::vector<IndexCheck>& checks = ctx.index_checks;
  const std::vector<uint64_t>& found = ctx.index_found;
  for (size_t i = 0; i < checks.size(); i++)
    if (found[i] != kNothing)
      run_failed("{} {} at place {} is out of range: {} [{}, {})", checks[i].what,
                 int32_t(uint32_t(found[i])), found[i] >> 32, checks[i].range, checks[i].low, checks[i].high);
}

}  // namespace trireme::cuda
