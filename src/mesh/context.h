// Who holds which positions of a sequence under context parallelism, and what of each other's keys they see:
// pure integers (docs/context_parallel.md).
//
// Whatever the placement, a rank's positions ascend, so of any keys a row may see it sees a range.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace trireme {

// Which positions of a sequence of S the P ranks hold, S / P each:
//   contiguous  rank r: [r S/P, (r + 1) S/P)
//   zigzag      of 2P chunks the r-th and the (2P - 1 - r)-th
//   striped     r, r + P, r + 2P, ...
enum class ContextPlacement : uint8_t { contiguous, zigzag, striped };
ContextPlacement context_placement(std::string_view name);  // bad_request on others

// Where the consecutive rows of a part lie in the whole: in runs of `length` neighbours, the q-th of which
// begins at begin + q * step. length = 0: row i is place i.
struct PositionRuns {
  int64_t length = 0, begin = 0, step = 0;
  int64_t first = 0;  // row that 0 means
  bool operator==(const PositionRuns&) const = default;

  int64_t at(int64_t i) const {
    i += first;
    return length == 0 ? i : begin + i / length * step + i % length;
  }
  // Rows from i on, itself among them, that lie side by side.
  int64_t neighbours(int64_t i) const { return length == 0 ? INT64_MAX : length - (first + i) % length; }
  PositionRuns from(int64_t row) const { return {length, begin, step, first + row}; }
  // Where row `row` of [sequences, part] lies in [sequences, seq], when a sequence's parts lie as this says.
  int64_t of_sequences(int64_t row, int64_t part, int64_t seq) const {
    row += first;
    return row / part * seq + PositionRuns{length, begin, step}.at(row % part);
  }
};

struct ContextPlace {
  int size = 1, rank = 0;
  ContextPlacement placement = ContextPlacement::contiguous;

  // S must be a multiple of it.
  int64_t divisor() const { return placement == ContextPlacement::zigzag ? 2 * size : size; }
  // Positions in the sequence of the rows of rank `of`, in order; and that of one of them.
  PositionRuns runs(int64_t seq, int of) const;
  int64_t position(int64_t local, int64_t seq, int of) const { return runs(seq, of).at(local); }
  // Positions of rank `of` that are below `position`.
  int64_t count_below(int64_t position, int64_t seq, int of) const;
};

// Pairs (query i, key j) with j <= i + offset, of `rows` queries and `keys` keys: what a causal attention
// computes of a block whose diagonal is so far to the right.
int64_t visible_pairs(int64_t rows, int64_t keys, int64_t offset);

// What the queries of one rank see of another's keys: of local rows [q_begin, q_begin + q_rows) and local
// keys [k_begin, k_begin + k_rows) all pairs or, causal, those with j <= i + offset (counted from the
// begins).
struct ContextBlock {
  int64_t q_begin = 0, q_rows = 0, k_begin = 0, k_rows = 0;
  bool causal = false;
  int64_t offset = 0;

  int64_t pairs() const { return causal ? visible_pairs(q_rows, k_rows, offset) : q_rows * k_rows; }
};
// Of this place's queries against rank `other`'s keys; none where they see nothing.
std::optional<ContextBlock> block_of(const ContextPlace&, int64_t seq, int other);

// Pairs that a rank computes in all, and those of the busiest rank over the mean: 1 = balanced.
int64_t pairs_of(const ContextPlace&, int64_t seq);
double imbalance(ContextPlacement, int size, int64_t seq);

}  // namespace trireme
