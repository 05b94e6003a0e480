// Which elements dropout keeps (Srivastava et al. 2014): a function of (key, global element index) alone, so
// that every layout, microbatch split, recompute and resume draws the same, and no mask is ever stored.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/rng.h"
#include "mesh/context.h"

namespace trireme {

// Element i is kept when word i % 4 of philox(key, i / 4) is at least rate * 2^32; what is kept is divided by
// 1 - rate, so nothing has to be scaled where nothing is dropped.
struct DropoutMask {
  double rate = 0;    // in [0, 1); 0: off, and the rest is not read
  uint64_t key = 0;   // rng_key(seed, step, name of the place in the model)
  int64_t first = 0;  // global index of element 0 of the operand
  // Of attention's probabilities: heads that a sequence is numbered with, where the operand has only some of
  // them (`first` says from which on); 0 = the operand's.
  int64_t heads = 0;
  // Of a rank that has a part of every sequence: positions that a whole one has (0: the operand's are whole
  // or lie side by side) and where in it the operand's rows lie, `part` of them a sequence; of attention's
  // probabilities also its keys. Element c of row r of sequence s is then numbered
  // first + (s seq + rows.at(r)) C + c, a probability as AttentionArgs says, with places in whole sequences.
  int64_t seq = 0, part = 0;
  PositionRuns rows, keys;
  bool operator==(const DropoutMask&) const = default;

  explicit operator bool() const { return rate > 0; }
  uint32_t threshold() const { return uint32_t(std::min(std::round(rate * 0x1p32), 0x1p32 - 1)); }
  double scale() const { return 1 / (1 - rate); }
  // Element i of the operand, or of the whole. For tests and reference code: kernels draw many at once.
  bool keeps(int64_t i) const { return keeps_numbered(first + i); }
  bool keeps_numbered(int64_t index) const {
    const auto at = uint64_t(index);
    return philox(key, at / 4)[at % 4] >= threshold();
  }
  // Number of element 0 of row `row` of an operand [N, columns].
  int64_t of_row(int64_t row, int64_t columns) const {
    return first + (seq == 0 ? row : rows.of_sequences(row, part, seq)) * columns;
  }
};

}  // namespace trireme
