// Dropout masks as kernels use them.
#pragma once
#include "device/dropout_mask.h"

namespace trireme::cpu {

// rows x columns of elements; of row r and column c the one with the number (counted as mask.first is:
// globally) first + row_places.at(r) * stride + column_places.at(c).
struct KeepTile {
  uint64_t first = 0;
  int64_t stride = 0, rows = 0, columns = 0;
  int64_t words = 0;  // of 16 bits between rows of `bits`, at least columns / 16 rounded up
  PositionRuns row_places = {}, column_places = {};
};
// Bit c % 16 of bits[r * words + c / 16] says whether element (r, c) is kept; bits beyond the last column are
// arbitrary.
void keep_bits(const DropoutMask&, const KeepTile&, uint16_t* bits);

}  // namespace trireme::cpu
