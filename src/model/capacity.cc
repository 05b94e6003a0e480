#include "model/capacity.h"

#include <algorithm>

#include "base/error.h"

namespace trireme {

void mark_dropped(std::span<int32_t> ids, const CapacityUnits& u) {
  const int64_t tokens = int64_t(ids.size()) / u.choices, rows = tokens / u.ranks.size;
  require(tokens % u.unit == 0, "a capacity is of whole units");
  std::vector<int64_t> row_of(size_t(tokens), 0);
  for (int r = 0; r < u.ranks.size; r++) {
    const PositionRuns runs = u.ranks.runs(u.seq, r);
    for (int64_t i = 0; i < rows; i++)
      row_of[size_t(runs.of_sequences(i, u.seq / u.ranks.size, u.seq))] = r * rows + i;
  }
  const std::vector<int64_t> before = u.before.empty() ? std::vector<int64_t>(size_t(u.experts)) : u.before;
  require(int64_t(before.size()) == u.experts && (u.before.empty() || tokens == u.unit),
          "choices that come before are of each expert, and of one unit");
  std::vector<int64_t> taken;
  for (int64_t t = 0; t < tokens; t++) {
    if (t % u.unit == 0) taken = before;
    for (int32_t& id : ids.subspan(size_t(row_of[size_t(t)] * u.choices), size_t(u.choices)))
      if (taken[size_t(id)]++ >= u.capacity) id = -1 - id;
  }
}

}  // namespace trireme
