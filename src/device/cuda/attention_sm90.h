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

#include "device/cuda/attention_widths.h"

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
constexpr int keys_of(HeadWidths w) {
  return w.v > 128 ? 64 : 128;
}
// Of the block's shared memory: q, then k and v of each stage; tiles begin at multiples of 1,024 bytes.
constexpr int q_at() {
  return 0;
}
constexpr int k_at(HeadWidths w, int stage) {
  return tile_bytes(kQueries, w.d) + tile_bytes(keys_of(w), w.d) * stage;
}
constexpr int v_at(HeadWidths w, int stage) {
  return k_at(w, kStages) + tile_bytes(keys_of(w), w.v) * stage;
}
constexpr int shared_bytes(HeadWidths w) {
  return v_at(w, kStages) + 1024;  // room to begin at a multiple
}

// ---- operands of products ----

// A matrix descriptor of 128-byte swizzle (PTX ISA, "Matrix descriptor"): address, leading and stride byte
// offset in units of 16 bytes, layout 1 in bits 62, 63.
constexpr uint64_t descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
  return uint64_t((address & 0x3ffff) >> 4) | uint64_t((leading & 0x3ffff) >> 4) << 16 |
         uint64_t((stride & 0x3ffff) >> 4) << 32 | uint64_t(1) << 62;
}
// So many bytes on. Addresses stay below 2^18, so nothing is carried out of the address's bits, and a tile's
// own descriptor is made once for all of its steps.
constexpr uint64_t moved(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}
// Rows [row, ..) and columns [16 step, 16 step + 16) of a tile of `rows` rows whose columns are summed over
// (q, k): groups of 8 rows are `stride` apart; the leading offset says nothing here.
constexpr uint64_t summed_columns(uint32_t tile, int rows, int row, int step) {
  const uint32_t panel = uint32_t(step / 4 * panel_bytes(rows)), column = uint32_t(step % 4 * 32);
  return moved(descriptor(tile, 16, kGroupBytes), panel + uint32_t(row * kRowBytes) + column);
}
// Rows [16 step, 16 step + 16) and columns from the panel's first on of a tile of `rows` rows whose rows are
// summed over (v): groups of 8 rows are `stride` apart, panels `leading`.
constexpr uint64_t summed_rows(uint32_t tile, int rows, int panel, int step) {
  return moved(descriptor(tile, uint32_t(panel_bytes(rows)), kGroupBytes),
               uint32_t(panel * panel_bytes(rows) + step * 16 * kRowBytes));
}

// The 16 bytes of row `row` from column 8 chunk on, of a tile of `rows` rows.
constexpr uint32_t chunk_at(uint32_t tile, int rows, int row, int chunk) {
  return tile + uint32_t(chunk / 8 * panel_bytes(rows) + row * kRowBytes + (chunk % 8 ^ row % 8) * 16);
}

// ---- backward: keys of a block, queries of a step ----

// Up to 128 columns (attention_sm90_backward.cu) keys are dealt to the consumers, 64 to each. Beyond that
// (attention_sm90_wide.cu) a block has 64 keys: one consumer has all of dV, the other all of dK.
constexpr bool wide(HeadWidths w) {
  return w.d > 128;
}
constexpr int block_keys(HeadWidths w) {
  return wide(w) ? 64 : 128;
}
constexpr int rows_of(HeadWidths w) {
  return w.d > 64 ? 64 : 128;
}
// Pieces of dQ, 64 queries x 64 columns of floats each: how many a step has. The consumers give them in turn,
// 0 first; where the n-th lies in the step's queries and in a head's columns.
inline constexpr int kPieceFloats = 64 * 64, kPieceBytes = 4 * kPieceFloats;
constexpr int pieces(HeadWidths w) {
  return rows_of(w) / 64 * panels(w.d);
}
constexpr int piece_row(HeadWidths w, int n) {
  return w.d > 64 ? 0 : 64 * n;
}
constexpr int piece_panel(HeadWidths w, int n) {
  return wide(w) ? n % 2 * 2 + n / 2 : w.d > 64 ? n : 0;
}

// Of the block's shared memory up to 128 columns: k and v; q and dout of each stage; dS^T, keys x queries; a
// piece of dQ of each consumer.
struct NarrowTiles {
  int k = 0, v = 0, q = 0, dout = 0, stage = 0, ds = 0, piece = 0, bytes = 0;
  constexpr explicit NarrowTiles(HeadWidths w) {
    v = tile_bytes(block_keys(w), w.d);
    q = v + tile_bytes(block_keys(w), w.v);
    dout = q + tile_bytes(rows_of(w), w.d);
    stage = dout + tile_bytes(rows_of(w), w.v) - q;  // from one to the next
    ds = q + kStages * stage;
    piece = ds + tile_bytes(block_keys(w), rows_of(w));
    bytes = piece + 2 * kPieceBytes + 1024;
  }
};
// Beyond: k and v; q of each stage; dout, of one stage where there is no room for two; P^T and dS^T, keys x
// queries; the pieces.
struct WideTiles {
  int k = 0, v = 0, q = 0, q_stage = 0, dout = 0, dout_stage = 0, p = 0, ds = 0, piece = 0, bytes = 0;
  int dout_stages = 0;
  constexpr explicit WideTiles(HeadWidths w) {
    v = tile_bytes(block_keys(w), w.d);
    q = v + tile_bytes(block_keys(w), w.v);
    q_stage = tile_bytes(rows_of(w), w.d);
    dout = q + kStages * q_stage;
    dout_stage = tile_bytes(rows_of(w), w.v);
    dout_stages = w.v > 128 ? 1 : kStages;
    p = dout + dout_stages * dout_stage;
    ds = p + tile_bytes(block_keys(w), rows_of(w));
    piece = ds + tile_bytes(block_keys(w), rows_of(w));
    bytes = piece + 2 * kPieceBytes + 1024;
  }
};

// Blocks of so many keys that the queries of a step see, one after another: [first, first + count). They add
// to dQ in ascending order, so block n comes after n - first others.
struct KeyBlocks {
  int first = 0, count = 0;
  constexpr bool has(int n) const { return n >= first && n < first + count; }
  constexpr int before(int n) const { return n - first; }
};
// begin: the first key that one of the rows sees; end: behind the last one that the last row sees.
constexpr KeyBlocks key_blocks(int begin, int end, int keys) {
  const int first = begin / keys, from = first * keys;
  return {first, end > begin ? (end - from + keys - 1) / keys : 0};
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
// Scratch of the backward pass, in bytes from there on: sums of dQ, the pieces of each (sequence, head,
// step); for each of these, how many blocks of keys have added to it; the ticket.
struct BackwardScratch {
  int64_t counts = 0, ticket = 0, bytes = 0;
  constexpr BackwardScratch(int64_t batch, int64_t heads, int64_t seq, HeadWidths w) {
    const int64_t steps = batch * heads * ((seq + rows_of(w) - 1) / rows_of(w));
    counts = steps * pieces(w) * kPieceBytes;
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
