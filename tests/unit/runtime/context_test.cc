// Parts of a batch and where documents begin in them, against brute force over positions.
#include "runtime/context.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

namespace trireme {
namespace {

constexpr ContextPlacement kAll[] = {ContextPlacement::contiguous, ContextPlacement::zigzag,
                                     ContextPlacement::striped};
constexpr int64_t kSequences = 3, kSeq = 24;

// Random documents of 1 to 9 tokens: positions restart at each.
std::vector<int32_t> positions() {
  std::mt19937 rng(4);
  std::vector<int32_t> out;
  for (int64_t b = 0; b < kSequences; b++)
    for (int64_t i = 0, left = 0, at = 0; i < kSeq; i++, left--, at++) {
      if (left == 0) left = 1 + int64_t(rng() % 9), at = 0;
      out.push_back(int32_t(at));
    }
  return out;
}

TEST(ContextBatch, KeepsTheRanksPositions) {
  for (ContextPlacement placement : kAll)
    for (int size : {1, 2, 3, 4})
      for (int r = 0; r < size; r++) {
        const ContextPlace at{.size = size, .rank = r, .placement = placement};
        std::vector<int32_t> rows(size_t(kSequences * kSeq));
        std::iota(rows.begin(), rows.end(), 100);
        keep_own(rows, kSeq, at);
        for (int64_t b = 0; b < kSequences; b++)
          for (int64_t i = 0; i < kSeq / size; i++)
            EXPECT_EQ(rows[size_t(b * (kSeq / size) + i)], 100 + b * kSeq + at.position(i, kSeq, r));
      }
}

// Of every block, a row sees exactly the keys of its own document that are not behind it.
TEST(ContextBatch, RowsSeeTheirDocumentInEveryPlacement) {
  const std::vector<int32_t> all = positions();
  for (ContextPlacement placement : kAll)
    for (int size : {1, 2, 3, 4})
      for (int r = 0; r < size; r++) {
        const ContextPlace at{.size = size, .rank = r, .placement = placement};
        std::vector<int32_t> first(all.size(), -1);
        document_starts(all, kSeq, at, first);
        const int64_t part = kSeq / size;
        for (int s = 0; s < size; s++)
          for (int64_t b = 0; b < kSequences; b++)
            for (int64_t i = 0; i < part; i++) {
              const int64_t row = at.position(i, kSeq, r), start = row - all[size_t(b * kSeq + row)];
              const auto block = block_of(at, kSeq, s);
              for (int64_t j = 0; j < part; j++) {
                const int64_t key = at.position(j, kSeq, s);
                bool sees = false;
                if (block && i >= block->q_begin && i < block->q_begin + block->q_rows &&
                    j >= block->k_begin && j < block->k_begin + block->k_rows) {
                  const int64_t qi = i - block->q_begin, kj = j - block->k_begin;
                  sees = kj >= first[size_t(s * kSequences * part + b * block->q_rows + qi)] &&
                         (!block->causal || kj <= qi + block->offset);
                }
                EXPECT_EQ(sees, key >= start && key <= row);
              }
            }
      }
}

}  // namespace
}  // namespace trireme
