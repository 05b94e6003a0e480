#include "mesh/context.h"

#include <algorithm>

#include "base/error.h"

namespace trireme {

ContextPlacement context_placement(std::string_view name) {
  if (name == "contiguous") return ContextPlacement::contiguous;
  if (name == "zigzag") return ContextPlacement::zigzag;
  if (name == "striped") return ContextPlacement::striped;
  bad_request("layout.cp_placement is {:?}; it is \"zigzag\", \"contiguous\" or \"striped\"", name);
}

PositionRuns ContextPlace::runs(int64_t seq, int of) const {
  const int64_t part = seq / size, chunk = part / 2;
  switch (placement) {
    case ContextPlacement::contiguous:
      return {.length = part, .begin = of * part};
    case ContextPlacement::zigzag:
      return {.length = chunk, .begin = of * chunk, .step = (2 * size - 1 - 2 * of) * chunk};
    case ContextPlacement::striped:
      return {.length = 1, .begin = of, .step = size};
  }
  return {};
}

int64_t ContextPlace::count_below(int64_t position, int64_t seq, int of) const {
  const int64_t part = seq / size, chunk = part / 2;
  auto in_range = [&](int64_t begin, int64_t length) {
    return std::clamp<int64_t>(position - begin, 0, length);
  };
  switch (placement) {
    case ContextPlacement::contiguous:
      return in_range(of * part, part);
    case ContextPlacement::zigzag:
      return in_range(of * chunk, chunk) + in_range((2 * size - 1 - of) * chunk, chunk);
    case ContextPlacement::striped:
      return std::clamp<int64_t>((position - of + size - 1) / size, 0, part);
  }
  return 0;
}

// Rows from `first` on see 1, 2, 3 ... keys, those from `full` on all.
int64_t visible_pairs(int64_t rows, int64_t keys, int64_t offset) {
  const int64_t first = std::clamp<int64_t>(-offset, 0, rows);
  const int64_t full = std::clamp<int64_t>(keys - 1 - offset, first, rows);
  const int64_t least = first + offset + 1, most = full + offset;  // keys of rows `first` and `full` - 1
  return (full > first ? (least + most) * (full - first) / 2 : 0) + (rows - full) * keys;
}

// Zigzag: chunk r comes before chunk 2P - 1 - s of every rank s, and chunk 2P - 1 - r after every chunk s; so
// of a rank below all rows see the first chunk, and of a rank above the second chunk of rows sees all.
std::optional<ContextBlock> block_of(const ContextPlace& at, int64_t seq, int other) {
  const int64_t part = seq / at.size, chunk = part / 2;
  const ContextBlock whole{.q_rows = part, .k_rows = part};
  ContextBlock causal = whole;
  causal.causal = true;
  if (other == at.rank) return causal;
  switch (at.placement) {
    case ContextPlacement::contiguous:
      return other < at.rank ? std::optional(whole) : std::nullopt;
    case ContextPlacement::zigzag:
      if (other < at.rank) return ContextBlock{.q_rows = part, .k_rows = chunk};
      return ContextBlock{.q_begin = chunk, .q_rows = part - chunk, .k_rows = part};
    case ContextPlacement::striped:
      causal.offset = other < at.rank ? 0 : -1;
      return causal;
  }
  return std::nullopt;
}

int64_t pairs_of(const ContextPlace& at, int64_t seq) {
  int64_t sum = 0;
  for (int other = 0; other < at.size; other++)
    if (const auto block = block_of(at, seq, other)) sum += block->pairs();
  return sum;
}

double imbalance(ContextPlacement placement, int size, int64_t seq) {
  int64_t most = 0, all = 0;
  for (int r = 0; r < size; r++) {
    const int64_t pairs = pairs_of({.size = size, .rank = r, .placement = placement}, seq);
    most = std::max(most, pairs), all += pairs;
  }
  return double(most) * size / double(all);
}

}  // namespace trireme
