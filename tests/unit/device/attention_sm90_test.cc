// Where attention for sm_90a finds what, held against the PTX ISA on a processor: what TMA leaves in shared
// memory is read back through wgmma's descriptors; the pipeline is run through by its barriers' rules.
#include "device/cuda/attention_sm90.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
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

// mbarrier's rules: a phase ends when all arrivals it waits for (and bytes) have come; waiting for a phase's
// parity goes on once that phase has ended, and for the parity before the first phase at once.
struct Barrier {
  int arrivals = 1, pending = 1;
  uint32_t phase = 0;
  void arrive() {
    ASSERT_GT(pending, 0);
    if (--pending == 0) phase ^= 1, pending = arrivals;
  }
  bool left(uint32_t parity) const { return phase != parity; }
};

// The producer and the two consumers' 8 warps as the kernel has them, one action after another in a random
// order: every step reads the keys that it should, nothing is written while it is read, all come to the end.
void run_through(int n, uint32_t seed) {
  std::mt19937 draw(seed);
  std::array<Barrier, kStages> k_full, v_full, k_empty, v_empty;
  for (auto* all : {&k_empty, &v_empty})
    for (Barrier& b : *all) b.arrivals = b.pending = 8;
  std::array<int, kStages> k_holds, v_holds, k_readers{}, v_readers{};
  k_holds.fill(-1), v_holds.fill(-1);

  int produced = 0;  // 2 i: k of step i is next, 2 i + 1: its v
  auto produce = [&] {
    const int i = produced / 2, stage = stage_of(i);
    const bool is_v = produced % 2 == 1;
    if (i == n || !(is_v ? v_empty : k_empty)[size_t(stage)].left(empty_phase(i))) return false;
    EXPECT_EQ((is_v ? v_readers : k_readers)[size_t(stage)], 0) << "step " << i << " is written while read";
    (is_v ? v_holds : k_holds)[size_t(stage)] = i;
    (is_v ? v_full : k_full)[size_t(stage)].arrive();
    produced++;
    return true;
  };
  // A warp: S of step i begins and ends, P V of step i - 1 begins with S of step i and ends after it.
  struct Warp {
    int i = 0;
    bool reading = false;
  };
  std::array<Warp, 8> warps;
  auto consume = [&](Warp& w) {
    if (w.i > n) return false;
    const bool has_k = w.i<n, has_v = w.i> 0;
    const size_t k = size_t(stage_of(w.i)), v = size_t(stage_of(w.i > 0 ? w.i - 1 : 0));
    if (!w.reading) {
      if (has_k && !k_full[k].left(full_phase(w.i))) return false;
      if (has_v && !v_full[v].left(full_phase(w.i - 1))) return false;
      if (has_k) {
        EXPECT_EQ(k_holds[k], w.i);
        k_readers[k]++;
      }
      if (has_v) {
        EXPECT_EQ(v_holds[v], w.i - 1);
        v_readers[v]++;
      }
      return w.reading = true;
    }
    if (has_k) k_readers[k]--, k_empty[k].arrive();
    if (has_v) {
      v_readers[v]--;
      if (w.i < n) v_empty[v].arrive();  // the last is not given back
    }
    w.reading = false, w.i++;
    return true;
  };
  int idle = 0;
  while (idle < 1000) {
    const uint32_t who = draw() % 9;
    idle = (who == 8 ? produce() : consume(warps[who])) ? 0 : idle + 1;
  }
  EXPECT_EQ(produced, 2 * n);
  for (const Warp& w : warps) EXPECT_EQ(w.i, n + 1);
}

TEST(AttentionSm90, StagesComeRoundWithoutWaitingForever) {
  for (int n = 1; n <= 9; n++)
    for (uint32_t seed = 0; seed < 40; seed++) {
      SCOPED_TRACE(n);
      run_through(n, seed);
      if (testing::Test::HasFailure()) return;
    }
}

// Named barriers: a phase ends when both consumers have come, one to wait, the other in passing.
TEST(AttentionSm90, ConsumersTakeTurns) {
  for (int n = 1; n <= 6; n++)
    for (uint32_t seed = 0; seed < 40; seed++) {
      std::mt19937 draw(seed);
      std::array<int, 2> given{}, taken{}, step{1, 1};
      std::array<bool, 2> first{true, true};
      std::vector<int> order;
      int idle = 0;
      while (idle < 100) {
        const size_t c = draw() % 2;
        idle++;
        if (first[c]) {  // behind the first softmax
          if (gives_first_turn(int(c), n)) given[1 - c]++;
          first[c] = false, idle = 0;
        } else if (step[c] < n && given[c] > taken[c]) {
          taken[c]++, order.push_back(int(c)), idle = 0;
          if (gives_turn(int(c), step[c], n)) given[1 - c]++;
          step[c]++;
        }
        ASSERT_LE(given[0] - taken[0], 1);  // no more than the barrier counts
        ASSERT_LE(given[1] - taken[1], 1);
      }
      EXPECT_EQ(given, taken);
      ASSERT_EQ(order.size(), size_t(2 * (n - 1)));
      for (size_t i = 0; i < order.size(); i++) EXPECT_EQ(order[i], int(i % 2));
    }
}

}  // namespace
}  // namespace trireme::cuda::sm90
