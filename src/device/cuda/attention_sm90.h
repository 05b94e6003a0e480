// Where FlashAttention for sm_90a (attention_sm90*.cu) finds what: tiles in shared memory, their
// 128-byte swizzle, descriptors of wgmma's operands, stages and phases of its pipeline. Plain functions,
// which a test on a processor holds against what the PTX ISA says ("Asynchronous warpgroup level matrix
// instructions", "Tensor swizzling modes").
//
// A tile of R rows of elements of 2 bytes lies as panels of 64 columns, the last one filled with zeros: R
// rows of 128 bytes each, the 16-byte chunks of a row exchanged by its number modulo 8. That is how a box of
// 64 columns arrives by TMA.
#pragma once
#include <cstdint>

namespace trireme::cuda::sm90 {

inline constexpr int kPanelColumns = 64, kRowBytes = 128, kGroupBytes = 8 * kRowBytes;
inline constexpr int kStages = 2;

constexpr int panels(int width) {
  return (width + kPanelColumns - 1) / kPanelColumns;
}
constexpr int panel_bytes(int rows) {
  return rows * kRowBytes;
}
constexpr int tile_bytes(int rows, int width) {
  return panels(width) * panel_bytes(rows);
}

// ---- forward: queries of a block, half to each consumer; keys of a step ----

inline constexpr int kQueries = 128;
constexpr int keys_of(int width) {
  return width > 128 ? 64 : 128;
}
// Of the block's shared memory: q, then k and v of each stage; tiles begin at multiples of 1,024 bytes.
constexpr int q_at(int) {
  return 0;
}
constexpr int k_at(int width, int stage) {
  return tile_bytes(kQueries, width) + tile_bytes(keys_of(width), width) * stage;
}
constexpr int v_at(int width, int stage) {
  return k_at(width, kStages + stage);
}
constexpr int shared_bytes(int width) {
  return k_at(width, 2 * kStages) + 1024;  // room to begin at a multiple
}

// ---- operands of products ----

// A matrix descriptor of 128-byte swizzle (PTX ISA, "Matrix descriptor"): address, leading and stride byte
// offset in units of 16 bytes, layout 1 in bits 62, 63.
constexpr uint64_t descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
  return uint64_t((address & 0x3ffff) >> 4) | uint64_t((leading & 0x3ffff) >> 4) << 16 |
         uint64_t((stride & 0x3ffff) >> 4) << 32 | uint64_t(1) << 62;
}
// Rows [row, ..) and columns [16 step, 16 step + 16) of a tile of `rows` rows whose columns are summed over
// (q, k): groups of 8 rows are `stride` apart; the leading offset says nothing here.
constexpr uint64_t summed_columns(uint32_t tile, int rows, int row, int step) {
  const uint32_t panel = uint32_t(step / 4 * panel_bytes(rows)), column = uint32_t(step % 4 * 32);
  return descriptor(tile + panel + uint32_t(row * kRowBytes) + column, 16, kGroupBytes);
}
// Rows [16 step, 16 step + 16) and columns from the panel's first on of a tile of `rows` rows whose rows are
// summed over (v): groups of 8 rows are `stride` apart, panels `leading`.
constexpr uint64_t summed_rows(uint32_t tile, int rows, int panel, int step) {
  return descriptor(tile + uint32_t(panel * panel_bytes(rows) + step * 16 * kRowBytes),
                    uint32_t(panel_bytes(rows)), kGroupBytes);
}

// The 16 bytes of row `row` from column 8 chunk on, of a tile of `rows` rows.
constexpr uint32_t chunk_at(uint32_t tile, int rows, int row, int chunk) {
  return tile + uint32_t(chunk / 8 * panel_bytes(rows) + row * kRowBytes + (chunk % 8 ^ row % 8) * 16);
}

// ---- backward: keys of a block, half to each consumer; queries of a step ----

inline constexpr int kBlockKeys = 128, kWidestBackward = 128;
constexpr int rows_of(int width) {
  return width > 64 ? 64 : 128;
}
// Of the block's shared memory: k and v; q and dout of each stage; dS^T, keys x queries; what each consumer
// has of dQ: 64 x 64 floats, of its queries where a step has 128 of them, else of its panel of columns.
inline constexpr int kPieceFloats = 64 * 64, kPieceBytes = 4 * kPieceFloats;
constexpr int backward_k_at(int) {
  return 0;
}
constexpr int backward_v_at(int width) {
  return tile_bytes(kBlockKeys, width);
}
constexpr int backward_q_at(int width, int stage) {
  return 2 * tile_bytes(kBlockKeys, width) + 2 * stage * tile_bytes(rows_of(width), width);
}
constexpr int backward_dout_at(int width, int stage) {
  return backward_q_at(width, stage) + tile_bytes(rows_of(width), width);
}
constexpr int ds_at(int width) {
  return backward_q_at(width, kStages);
}
constexpr int piece_at(int width, int consumer) {
  return ds_at(width) + tile_bytes(kBlockKeys, rows_of(width)) + consumer * kPieceBytes;
}
constexpr int backward_shared_bytes(int width) {
  return piece_at(width, 2) + 1024;
}
// Where a consumer's piece of dQ lies in the step's queries and in a head's columns.
constexpr int piece_row(int width, int consumer) {
  return width > 64 ? 0 : 64 * consumer;
}
constexpr int piece_panel(int width, int consumer) {
  return width > 64 ? consumer : 0;
}

// Blocks of keys that the queries of a step see, one after another: [first, first + count). They add to dQ in
// ascending order, so block n comes after n - first others.
struct KeyBlocks {
  int first = 0, count = 0;
  constexpr bool has(int n) const { return n >= first && n < first + count; }
  constexpr int before(int n) const { return n - first; }
};
// begin: the first key that one of the rows sees; end: behind the last one that the last row sees.
constexpr KeyBlocks key_blocks(int begin, int end) {
  const int first = begin / kBlockKeys, from = first * kBlockKeys;
  return {first, end > begin ? (end - from + kBlockKeys - 1) / kBlockKeys : 0};
}

// The block that a ticket is for: all (sequence, kv head) of a block of keys before those of the next, so
// that every block comes behind those that it waits for.
struct KeyBlockPlace {
  int n = 0, kv = 0, b = 0;
};
constexpr KeyBlockPlace block_of_ticket(int ticket, int batch, int kv_heads) {
  const int pairs = batch * kv_heads;
  return {ticket / pairs, ticket % pairs % kv_heads, ticket % pairs / kv_heads};
}

// Where, in bytes, the rest of the backward pass's scratch begins behind rows of delta.
constexpr int64_t backward_sums_at(int64_t rows) {
  return (rows * 4 + 63) / 64 * 64;
}
// Scratch of the backward pass, in bytes from there on: sums of dQ, 2 pieces for each (sequence,
// head, step); for each of these, how many blocks of keys have added to it; the ticket.
struct BackwardScratch {
  int64_t counts = 0, ticket = 0, bytes = 0;
  constexpr BackwardScratch(int64_t batch, int64_t heads, int64_t seq, int width) {
    const int64_t steps = batch * heads * ((seq + rows_of(width) - 1) / rows_of(width));
    counts = steps * 2 * kPieceBytes;
    ticket = counts + steps * 4;
    bytes = ticket + 4;
  }
};

// ---- the pipeline ----

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

// Steps of so many keys from `from` on, a multiple of that, to `last`.
constexpr int steps(int from, int last, int keys) {
  return last > from ? (last - from + keys - 1) / keys : 0;
}

}  // namespace trireme::cuda::sm90
