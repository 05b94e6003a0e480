// FlashAttention on CPU (2205.14135, 2307.08691): choice of tiles and blocks. See docs/attention.md.
#include "device/cpu/attention.h"

#include <atomic>

#include "device/cpu/cpu_device.h"

namespace trireme::cpu {
namespace attention {

AttentionBlocks blocks(const AttentionArgs& p) {
  return {p.block_q > 0 ? p.block_q : 256, p.block_k > 0 ? p.block_k : 256};
}
AttentionBlocks blocks(const AttentionBackwardArgs& p) {
  return {p.block_q > 0 ? p.block_q : 128, p.block_k > 0 ? p.block_k : 256};
}

void add_traffic(TileTraffic* to, const TileTraffic& from) {
  if (!to) return;
  std::atomic_ref(to->loads) += from.loads;
  std::atomic_ref(to->stores) += from.stores;
  std::atomic_ref(to->row_loads) += from.row_loads;
  std::atomic_ref(to->row_stores) += from.row_stores;
}

namespace {
// Calls f with the tile functions of this element type on this processor. Dropout of bf16 goes by f32: the
// tiles of bf16 pairs do not draw.
template <class F>
auto with_tiles(DType type, const DropoutMask& dropout, F&& f) {
  if (type == DType::f64) return f(tiles_f64());
  if (type == DType::f32) return f(tiles_f32());
  const Tiles<float>* native = nullptr;
  if (!dropout && multiplies_natively(DType::bf16)) native = tiles_amx() ? tiles_amx() : tiles_bf16();
  return f(native ? *native : tiles_bf16_by_f32());
}
}  // namespace
}  // namespace attention

int64_t scratch_bytes(const AttentionArgs& p, const Context& ctx) {
  if (p.q.numel() == 0) return 0;
  return attention::with_tiles(p.q.dtype, p.dropout,
                               [&](const auto& t) { return attention::scratch_bytes(p, t, ctx); });
}
void launch(const AttentionArgs& p, const Tensor& scratch, const Context& ctx) {
  if (p.q.numel() == 0) return;
  attention::with_tiles(p.q.dtype, p.dropout, [&](const auto& t) { attention::forward(p, t, scratch, ctx); });
}
int64_t scratch_bytes(const AttentionBackwardArgs& p, const Context& ctx) {
  if (p.q.numel() == 0) return 0;
  return attention::with_tiles(p.q.dtype, p.dropout,
                               [&](const auto& t) { return attention::scratch_bytes(p, t, ctx); });
}
void launch(const AttentionBackwardArgs& p, const Tensor& scratch, const Context& ctx) {
  if (p.q.numel() == 0) return;
  attention::with_tiles(p.q.dtype, p.dropout,
                        [&](const auto& t) { attention::backward(p, t, scratch, ctx); });
}

}  // namespace trireme::cpu
