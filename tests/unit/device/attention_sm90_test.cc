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
constexpr int kWidths[] = {64, 96, 128, 256};

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
    for (uint32_t tile : {0u, 1024u, uint32_t(k_at(width, 1))})
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
    for (uint32_t tile : {0u, uint32_t(v_at(width, 0)), uint32_t(v_at(width, 1))})
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

TEST(AttentionSm90, TilesLieApartInWhatABlockMayHave) {
  for (int width : kWidths) {
    std::vector<std::pair<int, int>> tiles{{q_at(width), tile_bytes(kQueries, width)}};
    for (int stage = 0; stage < kStages; stage++)
      for (int at : {k_at(width, stage), v_at(width, stage)})
        tiles.emplace_back(at, tile_bytes(keys_of(width), width));
    std::set<int> used;
    for (auto [begin, bytes] : tiles) {
      EXPECT_EQ(begin % 1024, 0);
      for (int at = begin; at < begin + bytes; at += 1024) EXPECT_TRUE(used.insert(at).second);
    }
    EXPECT_LE(*used.rbegin() + 1024, shared_bytes(width) - 1023);  // wherever the block's memory begins
    EXPECT_LE(shared_bytes(width), 227 << 10);
  }
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
