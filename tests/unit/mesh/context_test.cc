// Placements of context parallelism against brute force over positions.
#include "mesh/context.h"

#include <gtest/gtest.h>

#include <vector>

namespace trireme {
namespace {

constexpr ContextPlacement kPlacements[] = {ContextPlacement::contiguous, ContextPlacement::zigzag,
                                            ContextPlacement::striped};

TEST(Context, EveryPositionHasOneRankAndRanksAscend) {
  for (ContextPlacement placement : kPlacements)
    for (int size : {1, 2, 3, 4, 5})
      for (int64_t chunk : {1, 3, 7}) {
        const int64_t seq = 2 * size * chunk, part = seq / size;
        std::vector<int> seen(size_t(seq), 0);
        for (int r = 0; r < size; r++) {
          const ContextPlace at{.size = size, .rank = r, .placement = placement};
          for (int64_t i = 0; i < part; i++) {
            seen.at(size_t(at.position(i, seq, r)))++;
            if (i > 0) {
              EXPECT_GT(at.position(i, seq, r), at.position(i - 1, seq, r));
            }
          }
          for (int64_t p = 0; p <= seq; p++) {
            int64_t below = 0;
            for (int64_t i = 0; i < part; i++) below += at.position(i, seq, r) < p;
            EXPECT_EQ(at.count_below(p, seq, r), below);
          }
        }
        EXPECT_EQ(seen, std::vector<int>(size_t(seq), 1));
      }
}

// A block holds exactly the pairs whose key is not behind its query.
TEST(Context, BlocksAreWhatACausalMaskLeaves) {
  for (ContextPlacement placement : kPlacements)
    for (int size : {1, 2, 3, 4})
      for (int64_t chunk : {1, 2, 5}) {
        const int64_t seq = 2 * size * chunk, part = seq / size;
        for (int r = 0; r < size; r++)
          for (int s = 0; s < size; s++) {
            const ContextPlace at{.size = size, .rank = r, .placement = placement};
            const auto block = block_of(at, seq, s);
            int64_t pairs = 0;
            for (int64_t i = 0; i < part; i++)
              for (int64_t j = 0; j < part; j++) {
                const bool sees = at.position(j, seq, s) <= at.position(i, seq, r);
                const int64_t qi = block ? i - block->q_begin : 0, kj = block ? j - block->k_begin : 0;
                const bool in = block && qi >= 0 && qi < block->q_rows && kj >= 0 && kj < block->k_rows &&
                                (!block->causal || kj <= qi + block->offset);
                EXPECT_EQ(in, sees) << int(placement) << " " << size << " " << r << " " << s;
                pairs += sees;
              }
            EXPECT_EQ(block ? block->pairs() : 0, pairs);
          }
      }
}

TEST(Context, PairsBelowAMovedDiagonal) {
  for (int64_t rows : {0, 1, 4, 9})
    for (int64_t keys : {0, 1, 5, 9})
      for (int64_t offset = -12; offset <= 12; offset++) {
        int64_t pairs = 0;
        for (int64_t i = 0; i < rows; i++)
          for (int64_t j = 0; j < keys; j++) pairs += j <= i + offset;
        EXPECT_EQ(visible_pairs(rows, keys, offset), pairs) << rows << " " << keys << " " << offset;
      }
}

// Contiguous ((2P - 1) n + 1) / (P n + 1) of n = S / P, which tends to (2P - 1) / P; zigzag 1 exactly;
// striped 1 + (P - 1) / (S + 1): ranks differ by n pairs for each of the P - 1 ranks above.
TEST(Context, Imbalance) {
  for (int p : {2, 3, 4, 8})
    for (int64_t n : {2, 6, 50, 1 << 20}) {
      const double c = double((2 * p - 1) * n + 1) / double(p * n + 1);
      EXPECT_DOUBLE_EQ(imbalance(ContextPlacement::contiguous, p, n * p), c);
      EXPECT_DOUBLE_EQ(imbalance(ContextPlacement::zigzag, p, n * p), 1.0);
      EXPECT_DOUBLE_EQ(imbalance(ContextPlacement::striped, p, n * p), 1 + double(p - 1) / double(n * p + 1));
    }
  EXPECT_NEAR(imbalance(ContextPlacement::contiguous, 4, 4 << 20), 7.0 / 4, 1e-5);
}

}  // namespace
}  // namespace trireme
