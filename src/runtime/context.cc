#include "runtime/context.h"

#include <algorithm>

#include "base/error.h"

namespace trireme {

// Rows ascend with the places they come from, so none is overwritten before it was read.
void keep_own(std::span<int32_t> rows, int64_t seq, const ContextPlace& at) {
  if (at.size == 1) return;
  const int64_t part = seq / at.size, sequences = int64_t(rows.size()) / seq;
  for (int64_t b = 0; b < sequences; b++)
    for (int64_t i = 0; i < part; i++)
      rows[size_t(b * part + i)] = rows[size_t(b * seq + at.position(i, seq, at.rank))];
}

void document_starts(std::span<const int32_t> positions, int64_t seq, const ContextPlace& at,
                     std::span<int32_t> first) {
  require(first.size() == positions.size(), "one document start for every row and rank");
  const int64_t part = seq / at.size, sequences = int64_t(positions.size()) / seq;
  std::fill(first.begin(), first.end(), 0);
  for (int s = 0; s < at.size; s++) {
    const auto block = block_of(at, seq, s);
    if (!block) continue;
    int32_t* out = first.data() + s * sequences * part;
    for (int64_t b = 0; b < sequences; b++)
      for (int64_t i = 0; i < block->q_rows; i++) {
        const int64_t row = at.position(block->q_begin + i, seq, at.rank);
        const int64_t start = std::max<int64_t>(0, row - positions[size_t(b * seq + row)]);
        *out++ =
            int32_t(std::clamp<int64_t>(at.count_below(start, seq, s) - block->k_begin, 0, block->k_rows));
      }
  }
}

}  // namespace trireme
