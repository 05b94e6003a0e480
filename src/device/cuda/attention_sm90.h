// Where FlashAttention for sm_90a (attention_sm90_device.cu) finds what: tiles in shared memory, their
// 128-byte swizzle, descriptors of wgmma's operands, stages and phases of its pipeline. Plain functions,
// which a test on a processor holds against what the PTX ISA says ("Asynchronous warpgroup level matrix
// instructions", "Tensor swizzling modes").
//
// A tile of R rows of D <= 128 elements of 2 bytes lies as panels of 64 columns: R rows of 128 bytes each,
// the 16-byte chunks of a row exchanged by its number modulo 8. That is how a box of 64 columns arrives by
// TMA.
#pragma once
#include <cstdint>

namespace trireme::cuda::sm90 {

inline constexpr int kQueries = 128, kKeys = 128;  // of a block, half to each consumer; of a step
inline constexpr int kStages = 2;
inline constexpr int kPanelColumns = 64, kRowBytes = 128, kGroupBytes = 8 * kRowBytes;
inline constexpr int kPanelBytes = kKeys * kRowBytes;  // of q's and of k's and v's tiles alike

constexpr int panels(int width) {
  return width / kPanelColumns;
}
constexpr int tile_bytes(int width) {
  return panels(width) * kPanelBytes;
}
// Of the block's shared memory: q, then k and v of each stage; tiles begin at multiples of 1,024 bytes.
constexpr int q_at(int) {
  return 0;
}
constexpr int k_at(int width, int stage) {
  return tile_bytes(width) * (1 + stage);
}
constexpr int v_at(int width, int stage) {
  return tile_bytes(width) * (1 + kStages + stage);
}
constexpr int shared_bytes(int width) {
  return tile_bytes(width) * (1 + 2 * kStages) + 1024;  // room to begin at a multiple
}

// A matrix descriptor of 128-byte swizzle (PTX ISA, "Matrix descriptor"): address, leading and stride byte
// offset in units of 16 bytes, layout 1 in bits 62, 63.
constexpr uint64_t descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
  return uint64_t((address & 0x3ffff) >> 4) | uint64_t((leading & 0x3ffff) >> 4) << 16 |
         uint64_t((stride & 0x3ffff) >> 4) << 32 | uint64_t(1) << 62;
}
// Rows [row, ..) and columns [16 step, 16 step + 16) of a tile whose columns are summed over (q, k): groups
// of 8 rows are `stride` apart; the leading offset says nothing here.
constexpr uint64_t summed_columns(uint32_t tile, int row, int step) {
  const uint32_t panel = uint32_t(step / 4 * kPanelBytes), column = uint32_t(step % 4 * 32);
  return descriptor(tile + panel + uint32_t(row * kRowBytes) + column, 16, kGroupBytes);
}
// Rows [16 step, 16 step + 16) and all columns of a tile whose rows are summed over (v): groups of 8 rows are
// `stride` apart, panels `leading`.
constexpr uint64_t summed_rows(uint32_t tile, int step) {
  return descriptor(tile + uint32_t(step * 16 * kRowBytes), kPanelBytes, kGroupBytes);
}

// Step i of the keys lies in stage_of(i). Its copy is there when its full barrier has left phase
// full_phase(i); the copy may begin when its empty barrier has left empty_phase(i), which for the first
// kStages it has: a barrier that was never used counts as having left phase 1.
constexpr int stage_of(int i) {
  return i % kStages;
}
constexpr uint32_t full_phase(int i) {
  return uint32_t(i / kStages % 2);
}
constexpr uint32_t empty_phase(int i) {
  return full_phase(i) ^ 1;
}

// Consumers take turns at starting the products of steps 1 to n - 1, 0 first. A turn is given when the other
// has started its products, the first one behind the first softmax; nobody is given one that it does not
// take.
constexpr bool gives_first_turn(int consumer, int n) {
  return consumer == 1 && n > 1;
}
constexpr bool gives_turn(int consumer, int i, int n) {
  return consumer == 0 || i + 1 < n;
}

// Steps of kKeys keys from `from` on, a multiple of kKeys, to `last`.
constexpr int steps(int from, int last) {
  return last > from ? (last - from + kKeys - 1) / kKeys : 0;
}

}  // namespace trireme::cuda::sm90
