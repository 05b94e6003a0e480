// Where attention for sm_90a finds what, held against the PTX ISA on a processor: what TMA leaves in shared
// memory is read back through wgmma's descriptors. Phases and turns are held by the kernels themselves, which
// run by emulation (tests/emulate).
#include "device/cuda/attention_sm90.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

namespace trireme::cuda::sm90 {
namespace {

// PTX ISA, "Swizzling modes", 128 bytes: bits 4 to 6 of an address are exchanged by bits 7 to 9.
uint32_t swizzled(uint32_t address) {
  return address ^ (address >> 7 & 7) << 4;
}

// Shared memory, an element of 2 bytes a place.
using Memory = std::map<uint32_t, int>;

// What a tile's copy leaves: element (row, column) is row * 1000 + column. As the kernel starts it: a box of
// 64 columns and all rows a panel, dense rows of 128 bytes before the swizzle.
Memory copied(uint32_t tile, int rows, int width) {
  Memory m;
  for (int panel = 0; panel < panels(width); panel++)
    for (int row = 0; row < rows; row++)
      for (int c = 0; c < kPanelColumns; c++) {
        const uint32_t box = tile + uint32_t(panel * panel_bytes(rows));
        EXPECT_EQ(box % 1024, 0u);
        m[swizzled(box + uint32_t(row * 128 + c * 2))] = row * 1000 + panel * kPanelColumns + c;
      }
  EXPECT_EQ(m.size() * 2, size_t(tile_bytes(rows, width)));  // no two in one place
  return m;
}
constexpr int kWidths[] = {64, 96, 128, 192, 256};

HeadWidths widths_of(int d) {  // a kernel's whose q has so many columns
  for (HeadWidths w : kHeadWidths)
    if (w.d == d) return w;
  return {};
}

struct Fields {
  uint32_t address, leading, stride, base_offset, layout;
  explicit Fields(uint64_t d)
      : address(uint32_t(d & 0x3fff) << 4),
        leading(uint32_t(d >> 16 & 0x3fff) << 4),
        stride(uint32_t(d >> 32 & 0x3fff) << 4),
        base_offset(uint32_t(d >> 49 & 7)),
        layout(uint32_t(d >> 62)) {}
};

TEST(AttentionSm90, ScoresReadRowsAndSixteenColumns) {
  for (int width : kWidths)
    for (uint32_t tile : {0u, 1024u, uint32_t(k_at(widths_of(width), 1))})
      for (int rows : {64, 128}) {
        const Memory m = copied(tile, rows, width);
        for (int row = 0; row < rows; row += 64)
          for (int step = 0; step < width / 16; step++) {
            const Fields f(summed_columns(tile, rows, row, step));
            ASSERT_EQ(f.layout, 1u);
            ASSERT_EQ(f.base_offset, 0u);
            // K-major, 128-byte swizzle: ((8, n), 2) : ((8, stride), 1) in units of 16 bytes.
            for (int i = 0; i < (row == 0 ? rows : 64); i++)
              for (int k = 0; k < 16; k++) {
                const uint32_t at = f.address + uint32_t(i / 8) * f.stride + uint32_t(i % 8 * 128 + k * 2);
                const auto found = m.find(swizzled(at));
                ASSERT_NE(found, m.end()) << width << " " << row << " " << step << " " << i << " " << k;
                ASSERT_EQ(found->second, (row + i) * 1000 + 16 * step + k);
              }
          }
      }
}

TEST(AttentionSm90, ValuesReadSixteenRowsAndTheColumnsFromAPanelOn) {
  for (int width : kWidths)
    for (uint32_t tile : {0u, uint32_t(v_at(widths_of(width), 0)), uint32_t(v_at(widths_of(width), 1))})
      for (int rows : {64, 128}) {
        const Memory m = copied(tile, rows, width);
        for (int panel = 0; panel < panels(width); panel++)
          for (int step = 0; step < rows / 16; step++) {
            const Fields f(summed_rows(tile, rows, panel, step));
            ASSERT_EQ(f.layout, 1u);
            ASSERT_EQ(f.base_offset, 0u);
            // MN-major, 128-byte swizzle: ((8, 8, m), (8, k)) : ((1, 8, leading), (64, stride)) elements.
            for (int n = 0; n < width - panel * kPanelColumns; n++)
              for (int k = 0; k < 16; k++) {
                const uint32_t at = f.address + uint32_t(n / 64) * f.leading + uint32_t(n % 64 * 2) +
                                    uint32_t(k / 8) * f.stride + uint32_t(k % 8 * 128);
                const auto found = m.find(swizzled(at));
                ASSERT_NE(found, m.end()) << width << " " << step << " " << n << " " << k;
                ASSERT_EQ(found->second, (16 * step + k) * 1000 + panel * kPanelColumns + n);
              }
          }
      }
}

// Tiles, of 1,024 bytes and more each: (where, how long).
void expect_apart(const std::vector<std::pair<int, int>>& tiles, int bytes) {
  std::set<int> used;
  for (auto [begin, length] : tiles) {
    EXPECT_EQ(begin % 1024, 0);
    for (int at = begin; at < begin + length; at += 1024) EXPECT_TRUE(used.insert(at).second) << at;
  }
  EXPECT_LE(*used.rbegin() + 1024, bytes - 1023);  // wherever the block's memory begins
}
TEST(AttentionSm90, TilesLieApartInWhatABlockMayHave) {
  for (HeadWidths w : kHeadWidths) {
    std::vector<std::pair<int, int>> tiles{{q_at(), tile_bytes(kQueries, w.d)}};
    for (int stage = 0; stage < kStages; stage++) {
      tiles.emplace_back(k_at(w, stage), tile_bytes(keys_of(w), w.d));
      tiles.emplace_back(v_at(w, stage), tile_bytes(keys_of(w), w.v));
    }
    expect_apart(tiles, shared_bytes(w));
    EXPECT_LE(shared_bytes(w), 227 << 10);
  }
}
TEST(AttentionSm90, TilesOfTheBackwardPassDoToo) {
  constexpr int kBesideThem = 5 << 10;  // barriers and what queries are
  for (HeadWidths w : kHeadWidths) {
    const int keys = block_keys(w), rows = rows_of(w);
    const WideTiles far(w);
    const NarrowTiles near(w);
    const bool is_wide = wide(w);
    std::vector<std::pair<int, int>> tiles{{is_wide ? far.k : near.k, tile_bytes(keys, w.d)},
                                           {is_wide ? far.v : near.v, tile_bytes(keys, w.v)},
                                           {is_wide ? far.ds : near.ds, tile_bytes(keys, rows)}};
    for (int stage = 0; stage < kStages; stage++)
      tiles.emplace_back(is_wide ? far.q + stage * far.q_stage : near.q + stage * near.stage,
                         tile_bytes(rows, w.d));
    for (int stage = 0; stage < (is_wide ? far.dout_stages : kStages); stage++)
      tiles.emplace_back(is_wide ? far.dout + stage * far.dout_stage : near.dout + stage * near.stage,
                         tile_bytes(rows, w.v));
    if (is_wide) tiles.emplace_back(far.p, tile_bytes(keys, rows));
    for (int c = 0; c < 2; c++)
      tiles.emplace_back((is_wide ? far.piece : near.piece) + c * kPieceBytes, kPieceBytes);
    expect_apart(tiles, is_wide ? far.bytes : near.bytes);
    EXPECT_LE((is_wide ? far.bytes : near.bytes) + kBesideThem, 227 << 10);
  }
}
TEST(AttentionSm90, PiecesOfDqAreAllOfIt) {
  for (HeadWidths w : kHeadWidths) {
    std::set<std::pair<int, int>> seen;
    for (int n = 0; n < pieces(w); n++) seen.emplace(piece_row(w, n), piece_panel(w, n));
    EXPECT_EQ(int(seen.size()), pieces(w));
    for (int row = 0; row < rows_of(w); row += 64)
      for (int panel = 0; panel < panels(w.d); panel++) EXPECT_TRUE(seen.count({row, panel})) << w.d;
  }
}
TEST(AttentionSm90, HeadsGetTheLeastKernelThatTheyFit) {
  for (int d = 8; d <= 256; d += 8)
    for (int v = 8; v <= 256; v += 8) {
      const HeadWidths w = head_widths(d, v);
      EXPECT_TRUE(w.d >= d && w.v >= v);
      for (HeadWidths other : kHeadWidths)
        EXPECT_FALSE(other.d >= d && other.v >= v && other.d + other.v < w.d + w.v) << d << " " << v;
    }
  EXPECT_EQ(head_widths(192, 128), (HeadWidths{192, 128}));  // multi-head latent attention
  EXPECT_EQ(head_widths(264, 8), HeadWidths{});
}

TEST(AttentionSm90, StepsCoverTheKeys) {
  EXPECT_EQ(steps(0, 0, 128), 0);
  EXPECT_EQ(steps(128, 128, 128), 0);
  EXPECT_EQ(steps(256, 3, 64), 0);
  for (int keys : {64, 128})
    for (int from : {0, 128, 384})
      for (int last = from + 1; last < from + 600; last++) {
        EXPECT_GE(from + steps(from, last, keys) * keys, last);
        EXPECT_LT(from + (steps(from, last, keys) - 1) * keys, last);
      }
}

}  // namespace
}  // namespace trireme::cuda::sm90
